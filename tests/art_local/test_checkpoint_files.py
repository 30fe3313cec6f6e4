from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from art.errors import ConfigurationError
from art_local import checkpoint_files as files


def write_checkpoint(directory: Path, text: str = "weights") -> None:
    """Write what makes a directory a whole checkpoint."""
    (directory / files.ADAPTER_WEIGHTS).write_text(text)
    (directory / files.ADAPTER_CONFIG).write_text("{}")


def make_step(checkpoints: Path, step: int, text: str = "weights") -> Path:
    """Commit a small checkpoint."""
    target = files.step_dir(checkpoints, step)
    files.commit(checkpoints / ".art_local", target, lambda d: write_checkpoint(d, text))
    return target


def work_entries(checkpoints: Path) -> list[str]:
    """What is left in the work directory."""
    return [path.name for path in (checkpoints / ".art_local").iterdir()]


def test_c072_steps_are_listed_in_numeric_order(tmp_path: Path) -> None:
    """Padding to four digits does not put 10000 before 9999."""
    for step in (10000, 9999, 0, 123456):
        make_step(tmp_path, step)
    assert files.list_steps(tmp_path) == [0, 9999, 10000, 123456]
    assert work_entries(tmp_path) == []


def test_only_whole_directories_with_a_plain_number_are_listed(tmp_path: Path) -> None:
    """Other names, files, symlinks and directories without an adapter are no checkpoints."""
    real = make_step(tmp_path, 3)
    for name in ("latest", "7", "00012", "-001", "0005.tmp", "000²", "٠٠٠٤"):
        (tmp_path / name).mkdir()
        write_checkpoint(tmp_path / name)
    (tmp_path / "0008").symlink_to(real)
    (tmp_path / "0009").write_text("a file")
    (tmp_path / "0010").mkdir()
    (make_step(tmp_path, 11) / files.ADAPTER_WEIGHTS).unlink()
    (tmp_path / "0011" / files.ADAPTER_WEIGHTS).mkdir()
    (make_step(tmp_path, 12) / files.ADAPTER_WEIGHTS).unlink()
    (tmp_path / "0012" / files.ADAPTER_WEIGHTS).symlink_to("nowhere")
    assert files.list_steps(tmp_path) == [3]
    assert files.list_steps(tmp_path / "missing") == []


def test_a_checkpoint_that_is_made_anew_has_another_weights_file(tmp_path: Path) -> None:
    """The listing tells it from the one it replaced, which only shares its name."""
    make_step(tmp_path, 1)
    before = files.list_weights(tmp_path)
    assert files.list_weights(tmp_path) == before
    make_step(tmp_path, 1)
    assert files.list_weights(tmp_path).keys() == before.keys()
    assert files.list_weights(tmp_path) != before


def test_a_commit_replaces_an_existing_checkpoint(tmp_path: Path) -> None:
    """The new files are there, and nothing of the old ones (T8)."""
    target = make_step(tmp_path, 1, "old")
    (target / "extra").write_text("old")
    make_step(tmp_path, 1, "new")
    assert (target / files.ADAPTER_WEIGHTS).read_text() == "new"
    assert not (target / "extra").exists()
    assert work_entries(tmp_path) == []


def test_a_write_that_fails_changes_nothing(tmp_path: Path) -> None:
    """The old checkpoint stays, and the unfinished one is cleared away."""
    target = make_step(tmp_path, 1, "old")

    def write(directory: Path) -> None:
        write_checkpoint(directory, "new")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        files.commit(tmp_path / ".art_local", target, write)
    assert (target / files.ADAPTER_WEIGHTS).read_text() == "old"
    assert work_entries(tmp_path) == []


def test_every_file_is_synced_before_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files, then their directory, then, after the rename, the directory above."""
    synced: list[str] = []
    real = os.fsync

    def record(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    make_step(tmp_path / "checkpoints", 1)
    assert set(synced[:2]) == {files.ADAPTER_WEIGHTS, files.ADAPTER_CONFIG}
    assert synced[2].startswith("writing-")
    assert synced[3:] == ["checkpoints"]


KILLED = """
import os, pathlib, signal, sys
from art_local import checkpoint_files as files

checkpoints, when = pathlib.Path(sys.argv[1]), sys.argv[2]

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def write(directory):
    (directory / files.ADAPTER_WEIGHTS).write_text("new")
    if when == "writing":
        die()
    (directory / files.ADAPTER_CONFIG).write_text("{}")

if when == "syncing":
    os.fsync = die
elif when == "deleting the old one":
    files._remove = die
files.commit(checkpoints / ".art_local", files.step_dir(checkpoints, 2), write)
"""


@pytest.mark.parametrize("replacing", [False, True])
@pytest.mark.parametrize("when", ["writing", "syncing", "deleting the old one"])
def test_c077_a_process_killed_while_committing_leaves_no_half_checkpoint(
    tmp_path: Path, when: str, replacing: bool
) -> None:
    """After SIGKILL each listed step is whole, and the next clean-up removes the leftovers."""
    make_step(tmp_path, 1, "first")
    if replacing:
        make_step(tmp_path, 2, "old")
    result = subprocess.run([sys.executable, "-c", KILLED, tmp_path, when], check=False)
    assert result.returncode == -signal.SIGKILL
    committed = when == "deleting the old one"
    assert files.list_steps(tmp_path) == ([1, 2] if committed or replacing else [1])
    if committed or replacing:
        text = (files.step_dir(tmp_path, 2) / files.ADAPTER_WEIGHTS).read_text()
        assert text == ("new" if committed else "old")
    files.clean_work_dir(tmp_path / ".art_local")
    assert work_entries(tmp_path) == []


def test_clean_up_spares_what_a_live_process_uses(tmp_path: Path) -> None:
    """Entries of this process, of another live one, and names of another shape stay."""
    mine = files.work_path(tmp_path, "request")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        others = tmp_path / f"writing-{other.pid}-00000000"
        stranger = tmp_path / "notes"
        for path in (mine, others, stranger):
            path.mkdir()
        files.clean_work_dir(tmp_path)
        assert {p.name for p in tmp_path.iterdir()} == {mine.name, others.name, "notes"}
        other.kill()
    files.clean_work_dir(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {mine.name, "notes"}


def test_clean_up_knows_a_predecessor_with_the_same_pid(tmp_path: Path) -> None:
    """An entry with this pid that is older than this process is a leftover, as after a container's restart."""
    leftover = files.work_path(tmp_path, "writing")
    leftover.mkdir()
    long_ago_s = time.time() - 1e6
    os.utime(leftover, (long_ago_s, long_ago_s))
    files.clean_work_dir(tmp_path)
    assert list(tmp_path.iterdir()) == []
    files.clean_work_dir(tmp_path / "missing")


def test_copying_a_step_copies_its_files_and_renumbers_it(tmp_path: Path) -> None:
    """The copy holds the same weights, the optimizer's state, and its own step number."""
    source = make_step(tmp_path, 3)
    (source / files.OPTIMIZER_STATE).write_text("moments")
    (source / files.TRAINER_STATE).write_text('{"step": 3, "base_model": "m"}')
    target = files.step_dir(tmp_path, 4)
    files.copy_step(source, target, tmp_path / ".art_local")
    assert (target / files.ADAPTER_WEIGHTS).read_text() == "weights"
    assert (target / files.OPTIMIZER_STATE).read_text() == "moments"
    state = json.loads((target / files.TRAINER_STATE).read_text())
    assert state == {"step": 4, "base_model": "m"}
    assert json.loads((source / files.TRAINER_STATE).read_text())["step"] == 3


def test_exactly_the_steps_to_keep_survive(tmp_path: Path) -> None:
    """Order, duplicates and unknown steps are harmless, and the call can be repeated (D1, D2)."""
    for step in range(5):
        make_step(tmp_path, step)
    for _ in range(2):
        assert files.delete_steps(tmp_path, [4, 1, 4, 99], tmp_path / ".art_local") == []
        assert files.list_steps(tmp_path) == [1, 4]
        assert work_entries(tmp_path) == []


def test_an_empty_list_of_steps_to_keep_raises(tmp_path: Path) -> None:
    """Nobody means to delete everything (D2)."""
    make_step(tmp_path, 1)
    with pytest.raises(ConfigurationError, match="at least one step"):
        files.delete_steps(tmp_path, [], tmp_path / ".art_local")
    assert files.list_steps(tmp_path) == [1]


def test_deletion_leaves_symlinks_and_other_names_alone(tmp_path: Path) -> None:
    """Only real directories with a plain step number are deleted (D3)."""
    checkpoints = tmp_path / "checkpoints"
    make_step(checkpoints, 1)
    elsewhere = make_step(tmp_path / "other", 7)
    (checkpoints / "0007").symlink_to(elsewhere)
    (checkpoints / "best").mkdir()
    (checkpoints / "0003").mkdir()  # a step without files is deleted like any other
    assert files.delete_steps(checkpoints, [1], checkpoints / ".art_local") == []
    names = {path.name for path in checkpoints.iterdir()}
    assert names == {"0001", "0007", "best", ".art_local"}
    assert (elsewhere / files.ADAPTER_WEIGHTS).exists()


def test_a_step_that_cannot_be_deleted_does_not_stop_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failures are returned together; a step that is already gone is none (D4)."""
    for step in range(4):
        make_step(tmp_path, step)
    path_type = type(tmp_path)
    real = path_type.rename

    def rename(path: Path, target: Path) -> Path:
        if path.name == "0000":
            raise PermissionError(f"not allowed: {path}")
        if path.name == "0001":
            raise FileNotFoundError(path)
        return real(path, target)

    monkeypatch.setattr(path_type, "rename", rename)
    errors = files.delete_steps(tmp_path, [3], tmp_path / ".art_local")
    assert [type(error) for error in errors] == [PermissionError]
    assert 2 not in files.list_steps(tmp_path)
