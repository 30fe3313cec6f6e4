from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import art
import art.migration
from art.books.lock import write_lock
from art.books.trajectory_file import append_groups, read_groups, write_groups
from art.books.trajectory_formats import older_format
from art.errors import LogError
from art.migration import migrate_file
from art.utils.trajectory_json import deserialize_trajectory_groups, serialize_trajectory_groups
from tests.art.factories import group
from tests.art.upstream_files import DIRECTORY, groups_in
from tests.strategies import group_lists

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FILES = sorted(p.name for p in DIRECTORY.iterdir() if p.suffix != ".md")


def place(name: str, root: Path, step: str = "0001") -> Path:
    """Put a file of upstream where a model keeps its trajectories."""
    source = DIRECTORY / name
    path = root / "trajectories" / "train" / f"{step}{source.suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, path)
    return path


def names(path: Path) -> list[str]:
    return sorted(p.name for p in path.parent.iterdir())


@pytest.mark.parametrize("name", FILES)
def test_c160_every_older_file_is_migrated_without_loss(name: str, tmp_path: Path) -> None:
    """The new file gives what the old one gave, holds split and step, and is all that is left."""
    path = place(name, tmp_path)
    before = art.load_trajectories(tmp_path)
    size = path.stat().st_size

    migrated = migrate_file(path)

    assert migrated is not None
    target = path.with_suffix(".parquet")
    assert (migrated.target, migrated.was_there, migrated.num_groups) == (target, False, 2)
    assert (migrated.bytes_before, migrated.bytes_after) == (size, target.stat().st_size)
    assert names(path) == ["0001.parquet"]
    assert art.same_groups(art.load_trajectories(tmp_path), before)
    assert art.same_groups(before, groups_in(name))
    table = pq.read_table(target)
    assert set(table["split"].to_pylist()) == {"train"}
    assert set(table["step"].to_pylist()) == {1}
    assert migrate_file(target) is None


@given(group_lists, st.sampled_from(["0001.jsonl", "any.jsonl"]))
def test_any_jsonl_is_migrated_without_loss(
    tmp_path_factory: pytest.TempPathFactory, groups: list[art.TrajectoryGroup], name: str
) -> None:
    """Whatever the text gives back, the new file does."""
    path = tmp_path_factory.mktemp("model") / name
    text = serialize_trajectory_groups(groups)
    path.write_text(text)

    assert migrate_file(path) is not None

    expected = deserialize_trajectory_groups(text)
    assert art.same_groups(art.load_trajectories(path.with_suffix(".parquet")), expected)
    assert not path.exists()


@pytest.mark.parametrize("name", FILES)
def test_the_old_file_can_be_kept(name: str, tmp_path: Path) -> None:
    """Under its name, or, where the new file takes that, with `.original` added; a second call does nothing."""
    path = place(name, tmp_path)
    kept = path.with_name("0001.parquet.original") if path.suffix == ".parquet" else path
    for _ in range(2):
        migrate_file(path, keep=True)
        assert names(path) == sorted({"0001.parquet", kept.name})
        assert kept.read_bytes() == (DIRECTORY / name).read_bytes()
        assert art.same_groups(art.load_trajectories(tmp_path), groups_in(name))


@pytest.mark.parametrize("name", FILES)
def test_a_dry_run_leaves_everything_as_it_is(name: str, tmp_path: Path) -> None:
    """It reads the file and tells what it is."""
    path = place(name, tmp_path)
    migrated = migrate_file(path, dry_run=True)
    assert migrated is not None
    assert (migrated.num_groups, migrated.bytes_after) == (2, 0)
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [path]
    assert path.read_bytes() == (DIRECTORY / name).read_bytes()


def test_keys_that_groups_have_no_room_for_are_kept(tmp_path: Path) -> None:
    """As those of upstream's parquet are: in `extra`, under `upstream`."""
    path = place("0.5.23.jsonl", tmp_path)
    document = json.loads(path.read_text().split("\n")[0])
    document["scorer"] = "v3"
    document["trajectories"][0]["exchanges"] = {"chat_completions": [{"id": "\ud800"}]}
    path.write_text(json.dumps(document))

    migrate_file(path)

    extras = [
        json.loads(e) for e in pq.read_table(path.with_suffix(".parquet"))["extra"].to_pylist() if e
    ]
    upstream: dict[str, Any] = {}
    for extra in extras:
        upstream |= extra.get("upstream", {})
    assert upstream == {"scorer": "v3", "exchanges": {"chat_completions": [{"id": "\ud800"}]}}


def test_keys_without_room_are_never_dropped(tmp_path: Path) -> None:
    """A file whose name tells no step has no place for them, and is refused and left."""
    path = tmp_path / "best.jsonl"
    path.write_text('{"trajectories": [], "scorer": "v3"}')
    with pytest.raises(LogError, match="named by its step"):
        migrate_file(path)
    assert names(path) == ["best.jsonl"]


def test_an_existing_target_is_never_overwritten(tmp_path: Path) -> None:
    """Where it holds something else, that is an error, and both files stay."""
    path = place("0.5.18.jsonl", tmp_path)
    target = path.with_suffix(".parquet")
    write_groups(target, [group(9.0)])
    before = target.read_bytes()
    for keep in (False, True):
        with pytest.raises(LogError, match=r"0001\.parquet exists"):
            migrate_file(path, keep=keep)
    assert target.read_bytes() == before
    assert path.read_bytes() == (DIRECTORY / "0.5.18.jsonl").read_bytes()


def test_a_migration_that_was_killed_before_it_deleted_is_finished(tmp_path: Path) -> None:
    """Even when the run went on to log at the same step in between."""
    path = place("0.5.18.jsonl", tmp_path)
    migrate_file(path, keep=True)
    target = path.with_suffix(".parquet")
    append_groups(target, [group(9.0)], split="train", step=1)
    before = target.read_bytes()

    migrated = migrate_file(path)

    assert migrated is not None
    assert migrated.was_there
    assert names(path) == ["0001.parquet"]
    assert target.read_bytes() == before


def test_an_original_with_more_than_its_target_shows_is_not_deleted(tmp_path: Path) -> None:
    """Keys that groups have no room for cannot be compared, so the old file stays."""
    path = place("0.5.18.jsonl", tmp_path)
    lines = [json.loads(line) for line in path.read_text().split("\n")]
    path.write_text("\n".join(json.dumps({**line, "scorer": "v3"}) for line in lines))
    migrate_file(path, keep=True)
    migrated = migrate_file(path, keep=True)
    assert migrated is not None
    assert migrated.was_there
    with pytest.raises(LogError, match="look into both"):
        migrate_file(path)
    assert path.exists()


@pytest.mark.parametrize("name", FILES)
def test_a_new_file_that_differs_is_thrown_away(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is believed to have been written before it was read back."""
    path = place(name, tmp_path)

    def lose_a_group(
        staged: Path, groups: Sequence[art.TrajectoryGroup], *, split: str, step: int
    ) -> int:
        append_groups(staged, groups, split=split, step=step)
        write_groups(staged, read_groups(staged)[:-1])
        return 0

    monkeypatch.setattr(art.migration, "append_groups", lose_a_group)
    with pytest.raises(LogError, match="did not come back the same"):
        migrate_file(path)
    assert names(path) == [path.name]
    assert path.read_bytes() == (DIRECTORY / name).read_bytes()


@pytest.mark.parametrize("name", ["0.5.18.jsonl", "0.5.18-v1.parquet", "0.5.23-v2.parquet"])
def test_a_full_disk_leaves_the_old_file(name: str, tmp_path: Path) -> None:
    """The error tells what to do, and no part of a new file stays behind."""
    path = place(name, tmp_path)
    code = (
        "import resource, sys; from pathlib import Path\n"
        "from art.migration import migrate_file; from art.errors import LogError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try: migrate_file(Path(sys.argv[1]))\n"
        "except LogError as error: print(error)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    )
    assert "file size limit" in run.stdout
    assert names(path) == [path.name]
    assert path.read_bytes() == (DIRECTORY / name).read_bytes()


def test_an_unreadable_file_is_an_error_and_stays(tmp_path: Path) -> None:
    """Torn files are for the user to look into."""
    for name in FILES:
        path = place(name, tmp_path / name)
        torn = path.read_bytes()[:250]
        path.write_bytes(torn)
        with pytest.raises(LogError, match="0001"):
            migrate_file(path)
        assert names(path) == [path.name]
        assert path.read_bytes() == torn


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    """It may have been deleted since it was found."""
    with pytest.raises(LogError, match=r"0001\.jsonl"):
        migrate_file(tmp_path / "0001.jsonl")


def test_a_migration_waits_for_whoever_writes_to_the_model(tmp_path: Path) -> None:
    """A `log` at the same step is never in between reading the old file and placing the new one."""
    path = place("0.5.18-v1.parquet", tmp_path)
    with write_lock(tmp_path / ".write.lock"):
        thread = threading.Thread(target=migrate_file, args=(path,))
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
        assert path.read_bytes() == (DIRECTORY / "0.5.18-v1.parquet").read_bytes()
    thread.join()
    assert older_format(path) is None


def test_what_a_killed_migration_left_is_removed(tmp_path: Path) -> None:
    """By the next one in the same directory, even where it finds its file migrated."""
    path = place("0.5.18.jsonl", tmp_path)
    staging = path.with_name(".migrating%")
    for file in (path, path.with_suffix(".parquet")):
        staging.mkdir()
        (staging / "0001.parquet").write_bytes(b"PAR1")
        migrate_file(file)
        assert names(path) == ["0001.parquet"]


def test_a_kept_copy_is_never_overwritten(tmp_path: Path) -> None:
    """It may be all that is left of an older file."""
    path = place("0.5.18-v1.parquet", tmp_path)
    aside = path.with_name("0001.parquet.original")
    aside.write_text("precious")
    with pytest.raises(LogError, match="exists already"):
        migrate_file(path, keep=True)
    assert aside.read_text() == "precious"
    assert path.read_bytes() == (DIRECTORY / "0.5.18-v1.parquet").read_bytes()
