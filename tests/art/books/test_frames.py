from __future__ import annotations

import math
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from art.books.frames import history_frame, read_history
from art.books.history import History
from tests.art.books.history_files import blocks, files, plain_rows, rows_of
from tests.profiles import examples


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.jsonl"


def frame(path: Path) -> pl.DataFrame:
    """What the lines tell; blocks of any size must tell the same."""
    found = read_history(path)
    for size in (1, 100, 10_000):
        with blocks(size):
            assert_frame_equal(read_history(path), found)
    return found


def test_no_history_is_an_empty_frame(path: Path) -> None:
    """The fixed columns are there without a file, with an empty one, and with nothing but damage."""
    schema = {"step": pl.Int64, "policy_step": pl.Int64, "recorded_at": pl.String}
    assert frame(path).schema == schema
    path.write_bytes(b"")
    assert frame(path).schema == schema
    path.write_bytes(b"torn\n{}\nnull\n")
    assert frame(path).schema == schema


def test_every_column_is_there_in_order(path: Path) -> None:
    """Fixed columns first, then the metrics by name, each a float, with null where a row has none."""
    History(path).append({"val/b": 1.0}, step=1)
    History(path).append({"val/a": 2.0}, step=2, policy_step=1)
    found = frame(path)
    assert found.columns == ["step", "policy_step", "recorded_at", "val/a", "val/b"]
    assert found["val/a"].to_list() == [None, 2.0]
    assert found["policy_step"].to_list() == [None, 1]
    assert found.schema["val/b"] == pl.Float64


@pytest.mark.parametrize("num_rows_before", [99, 100, 300])
def test_c046_a_late_column_is_there(path: Path, num_rows_before: int) -> None:
    """A metric that first appears after many rows has its column."""
    early = [(n, None, {"train/loss": 1.0}) for n in range(num_rows_before)]
    path.write_bytes(rows_of([*early, (9, None, {"val/reward": 0.5})]))
    assert frame(path)["val/reward"].drop_nulls().to_list() == [0.5]


def test_c035_whole_numbers_before_fractions_are_exact(path: Path) -> None:
    """A metric that is 1 for 150 rows and then 0.5 is a float column with these values."""
    path.write_bytes(rows_of([(n, None, {"val/x": 1 if n < 150 else 0.5}) for n in range(151)]))
    assert frame(path)["val/x"].to_list() == [1.0] * 150 + [0.5]


def test_a_text_in_one_metric_costs_no_other(path: Path) -> None:
    """A string after many numbers, here and in another key, is left out alone."""
    rows = [(n, None, {"val/x": n + 0.5, "val/y": 1}) for n in range(1500)]
    path.write_bytes(rows_of(rows) + b'{"val/x": "high", "val/y": "1", "val/z": 2, "step": 1500}\n')
    found = frame(path)
    assert found.height == 1501
    assert found["val/x"].null_count() == found["val/y"].null_count() == 1
    assert found["val/z"].drop_nulls().to_list() == [2.0]


def test_a_name_that_no_column_can_have_is_escaped(path: Path) -> None:
    """A lone surrogate in a metric's name stands as its escape."""
    History(path).append({"val/\ud800": 1.0}, step=0)
    assert frame(path)["val/\\ud800"].to_list() == [1.0]


@given(files(), st.integers(1, 300))
@settings(max_examples=examples(75))
def test_arbitrary_damage_costs_no_undamaged_row(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, size: int
) -> None:
    """Line by line and in blocks, the frame holds exactly the undamaged rows."""
    path = tmp_path_factory.mktemp("fuzz") / "history.jsonl"
    path.write_bytes(content)
    with blocks(None):
        by_line = read_history(path)
    with blocks(size):
        assert_frame_equal(read_history(path), by_line)
    rows = plain_rows(content)
    for name in ("step", "policy_step"):
        assert by_line[name].to_list() == [row[name] for row in rows]
    for key in {key for row in rows for key in row["metrics"]}:
        name = key.encode("utf-8", "backslashreplace").decode()
        assert by_line[name].to_list() == [row["metrics"].get(key) for row in rows]
    assert_frame_equal(history_frame(History(path).rows()), by_line)


def test_values_are_read_to_the_last_bit(path: Path) -> None:
    """Floats in blocks are those of the line reader."""
    values = [math.pi, 5e-324, 1.7976931348623157e308, 2.0**70, -0.1, 1 / 3, 123456789.123456789]
    path.write_bytes(rows_of([(n, None, {"val/x": value}) for n, value in enumerate(values)]))
    assert frame(path)["val/x"].to_list() == values
