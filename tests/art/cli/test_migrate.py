from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import art
from art.books.trajectory_file import write_groups
from art.cli import main
from tests.art.factories import group
from tests.art.upstream_files import DIRECTORY, groups_in

pytestmark = pytest.mark.process

OLD = {
    "train/0001.yaml": "2025-06.yaml",
    "train/0002.jsonl": "0.5.18.jsonl",
    "train/0003.parquet": "0.5.18-v1.parquet",
    "val/0004.parquet": "0.5.23-v2.parquet",
}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A base path with one model, which has a file of each older format and one of the present."""
    trajectories = tmp_path / ".art" / "project" / "models" / "agent" / "trajectories"
    for name, source in OLD.items():
        (trajectories / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(DIRECTORY / source, trajectories / name)
    write_groups(trajectories / "train" / "0005.parquet", [group(1.0)])
    return tmp_path / ".art"


def model_dir(base: Path) -> Path:
    return base / "project" / "models" / "agent"


def files(directory: Path) -> list[str]:
    root = directory / "trajectories"
    return sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file())


def assert_all_there(directory: Path) -> None:
    for name, source in OLD.items():
        groups = art.load_trajectories(directory, step=int(Path(name).stem))
        assert art.same_groups(groups, groups_in(source)), name


def test_c160_all_older_files_are_migrated(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line for each, a summary with sizes, and nothing but the present format left."""
    assert main(["migrate", str(base)]) == 0
    *lines, summary = capsys.readouterr().out.splitlines()
    inner = "project/models/agent/trajectories"
    assert [line.split(",")[0] for line in lines] == [
        f"{inner}/train/0001.yaml: YAML",
        f"{inner}/train/0002.jsonl: JSONL",
        f"{inner}/train/0003.parquet: parquet v1",
        f"{inner}/val/0004.parquet: parquet v2",
    ]
    size = sum((DIRECTORY / name).stat().st_size for name in OLD.values())
    assert summary.startswith(f"migrated 4 files, {size:,} bytes before, ")
    assert summary.endswith("1 need no migration, 0 failed")
    assert files(model_dir(base)) == [
        *(f"train/000{step}.parquet" for step in (1, 2, 3, 5)),
        "val/0004.parquet",
    ]
    assert_all_there(model_dir(base))
    assert main(["migrate", str(base)]) == 0
    assert "migrated 0 files" in capsys.readouterr().out


@pytest.mark.parametrize("flag", ["--dry-run", "-n"])
def test_a_dry_run_writes_nothing(
    flag: str, base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same lines, told as what would be."""
    before = {path: path.read_bytes() for path in base.rglob("*") if path.is_file()}
    assert main(["migrate", str(base / "project"), flag]) == 0
    *lines, summary = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert all("would become 000" in line for line in lines)
    assert summary.startswith("would migrate 4 files of ")
    assert {path: path.read_bytes() for path in base.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("flag", ["--keep", "--keep-jsonl"])
def test_old_files_can_be_kept(flag: str, base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They stay beside the new ones; a second run has nothing to do, and one without the flag deletes."""
    directory = model_dir(base)
    assert main(["migrate", str(directory), flag]) == 0
    kept = files(directory)
    assert {"train/0001.yaml", "train/0002.jsonl", "train/0003.parquet.original"} <= set(kept)
    assert_all_there(directory)
    capsys.readouterr()
    assert main(["migrate", str(directory), flag]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "migrated 0 files, 0 bytes before, 0 after; 7 need no migration, 0 failed"
    ]
    assert files(directory) == kept
    assert main(["migrate", str(directory), "--dry-run"]) == 0
    assert "0001.parquet held it already, so it would be deleted" in capsys.readouterr().out
    assert main(["migrate", str(directory)]) == 0
    assert "0001.parquet held it already, so it was deleted" in capsys.readouterr().out
    assert "train/0001.yaml" not in files(directory)
    assert_all_there(directory)


def test_a_file_that_fails_is_told_and_stops_nothing(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On stderr, with exit status 1; the file stays."""
    torn = model_dir(base) / "trajectories" / "train" / "0000.jsonl"
    torn.write_text('{"trajectories": [')
    assert main(["migrate", str(base)]) == 1
    shown = capsys.readouterr()
    [line] = shown.err.splitlines()
    assert line.startswith("project/models/agent/trajectories/train/0000.jsonl: failed: ")
    assert "line 1" in line
    assert shown.out.splitlines()[-1].endswith("1 need no migration, 1 failed")
    assert torn.read_text() == '{"trajectories": ['
    assert_all_there(model_dir(base))


def test_a_wrong_call_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A directory that is none, and no directory at all."""
    assert main(["migrate", str(tmp_path / "none")]) == 1
    assert "is no directory" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stopped:
        main(["migrate"])
    assert stopped.value.code == 2


def test_the_command_is_listed_without_an_entry_point(capsys: pytest.CaptureFixture[str]) -> None:
    """It is part of the frontend, so it is there however the package was installed."""
    assert main(["--help"]) == 0
    assert "migrate  " in capsys.readouterr().out


@pytest.mark.parametrize("num_lines", [1, 2, 3])
def test_a_kill_at_any_file_loses_and_doubles_nothing(num_lines: int, base: Path) -> None:
    """After a SIGKILL all is read back once, and another run finishes the work."""
    directory = model_dir(base)
    command = [sys.executable, "-m", "art", "migrate", str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(num_lines):
            process.stdout.readline()
        process.kill()
    assert_all_there(directory)
    assert main(["migrate", str(directory)]) == 0
    assert_all_there(directory)
    assert all(name.endswith(".parquet") for name in files(directory))
