from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import art
from art.books.trajectory_file import append_groups, read_groups, write_groups
from art.books.trajectory_formats import older_format, write_as_v2
from art.books.trajectory_legacy import read_legacy_file
from art.errors import LogError
from tests.art.factories import group
from tests.art.upstream_files import DIRECTORY, groups_in

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("2025-06.yaml", "YAML"),
        ("0.5.18.jsonl", "JSONL"),
        ("0.5.18-v1.parquet", "parquet v1"),
        ("0.5.18-v1-migrated.parquet", "parquet v1"),
        ("0.5.23-v2.parquet", "parquet v2"),
    ],
)
def test_older_formats_are_told(name: str, expected: str) -> None:
    """By suffix, and parquet by its columns."""
    assert older_format(DIRECTORY / name) == expected


def test_the_present_format_is_none_of_them(tmp_path: Path) -> None:
    """There is nothing to migrate."""
    path = tmp_path / "0001.parquet"
    write_groups(path, [group(1.0)])
    assert older_format(path) is None


def test_columns_that_would_be_lost_are_refused(tmp_path: Path) -> None:
    """A stranger's column is named; so is a table of something else."""
    path = tmp_path / "0001.parquet"
    table = pq.read_table(DIRECTORY / "0.5.18-v1.parquet")
    pq.write_table(table.append_column("judge_notes", pa.array(["a"] * len(table))), path)
    with pytest.raises(LogError, match=r"0001\.parquet .*judge_notes"):
        older_format(path)
    pq.write_table(pa.table({"reward": [1.0]}), path)
    with pytest.raises(LogError, match="not the columns of a trajectory file"):
        older_format(path)


def test_a_torn_file_is_an_error(tmp_path: Path) -> None:
    """The error names the file; a missing one is told as such."""
    path = tmp_path / "0001.parquet"
    path.write_bytes((DIRECTORY / "0.5.18-v1.parquet").read_bytes()[:-10])
    with pytest.raises(LogError, match=r"0001\.parquet"):
        older_format(path)
    with pytest.raises(FileNotFoundError):
        older_format(tmp_path / "0002.parquet")


@pytest.mark.parametrize("name", ["2025-06.yaml", "0.5.18.jsonl", "0.5.23.jsonl"])
def test_documents_keep_all_they_hold_on_the_way(name: str, tmp_path: Path) -> None:
    """As upstream's second parquet format, and from there in ours."""
    path = tmp_path / "0001.parquet"
    write_as_v2(read_legacy_file(DIRECTORY / name).documents, path)
    assert older_format(path) == "parquet v2"
    assert art.same_groups(read_groups(path), groups_in(name))
    append_groups(path, [], split="train", step=1)
    assert older_format(path) is None
    assert art.same_groups(read_groups(path), groups_in(name))


def test_no_documents_are_a_file_without_rows(tmp_path: Path) -> None:
    """A step without groups stays one."""
    path = tmp_path / "0001.parquet"
    write_as_v2([], path)
    append_groups(path, [], split="train", step=1)
    assert read_groups(path) == []
