from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import art
from art.errors import InvalidTrajectoriesError, LogError
from art.utils import trajectory_logging, trajectory_migration
from art.utils.trajectory_logging import (
    read_trajectory_groups_parquet,
    write_trajectory_groups_parquet,
)
from tests.art.factories import group
from tests.art.upstream_files import DIRECTORY, groups_in

if TYPE_CHECKING:
    from pathlib import Path


def test_groups_are_written_and_read_back(tmp_path: Path) -> None:
    """Paths may be text; directories are made, and an older file is replaced."""
    path = tmp_path / "new" / "0001.parquet"
    groups = [group(1.0, 0.0, metadata={"x": 1}), art.TrajectoryGroup([ValueError("lost")])]

    write_trajectory_groups_parquet([group(5.0)], str(path))
    write_trajectory_groups_parquet(groups, path)

    assert art.same_groups(read_trajectory_groups_parquet(str(path)), groups)


def test_an_empty_list_is_an_empty_file(tmp_path: Path) -> None:
    """As upstream's functions have it."""
    path = tmp_path / "0001.parquet"
    write_trajectory_groups_parquet([], path)
    assert read_trajectory_groups_parquet(path) == []


@pytest.mark.parametrize("name", ["0.5.18-v1.parquet", "0.5.23-v2.parquet"])
def test_c160_parquet_of_upstream_is_read(name: str) -> None:
    """Both of its formats, whole."""
    assert art.same_groups(read_trajectory_groups_parquet(DIRECTORY / name), groups_in(name))


def test_c007_choices_come_back_with_their_logprobs(tmp_path: Path) -> None:
    """Upstream's reader gave dicts, and lost the logprobs."""
    path = tmp_path / "0001.parquet"
    groups = groups_in("0.5.23.jsonl")
    write_trajectory_groups_parquet(groups, path)
    assert art.same_groups(read_trajectory_groups_parquet(path), groups)


def test_errors_leave_the_older_file(tmp_path: Path) -> None:
    """What cannot be stored is refused before anything is written; what is no file is an error."""
    path = tmp_path / "0001.parquet"
    write_trajectory_groups_parquet([group(5.0)], path)
    before = path.read_bytes()
    with pytest.raises(InvalidTrajectoriesError):
        write_trajectory_groups_parquet([art.TrajectoryGroup([], metadata={"x": object()})], path)
    assert path.read_bytes() == before
    with pytest.raises(FileNotFoundError):
        read_trajectory_groups_parquet(tmp_path / "0002.parquet")
    path.write_bytes(before[:100])
    with pytest.raises(LogError, match=r"0001\.parquet"):
        read_trajectory_groups_parquet(path)


def test_helpers_for_text_are_in_both_modules() -> None:
    """Upstream moved them from one to the other; scripts import them from either."""
    moved = set(trajectory_logging.__all__) & set(trajectory_migration.__all__)
    assert moved >= {"serialize_trajectory_groups", "deserialize_trajectory_groups"}
    for name in moved:
        assert getattr(trajectory_logging, name) is getattr(trajectory_migration, name)
