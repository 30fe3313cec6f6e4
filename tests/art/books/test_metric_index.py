from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art.books.history import History
from art.books.jsonl import JsonLinesReader, read_rows
from art.books.ledger import Rewind
from art.books.metric_index import MetricIndex
from art.rules.learning_rate import multiplier
from tests.art.books.history_files import (
    blocks,
    files,
    plain_points,
    plain_rows,
    rows_of,
)
from tests.profiles import examples

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SPREAD = "train/reward_std_dev"
SCORED = "train/num_groups_scored"
Row = tuple[int, int | None, dict[str, float]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.jsonl"


def index(path: Path, rewinds: Sequence[Rewind] = ()) -> MetricIndex:
    return MetricIndex(path, lambda: rewinds)


def means(path: Path, key: str = "val/reward", rewinds: Sequence[Rewind] = ()) -> dict[int, float]:
    """What the lines tell; frames of any size must tell the same."""
    found = index(path, rewinds).means(key)
    for size in (1, 100, 10_000):
        with blocks(size):
            assert index(path, rewinds).means(key) == found
    return found


def factor(found: MetricIndex) -> float:
    trend = found.spread()
    return 1.0 if trend is None else trend.multiplier()


def test_several_rows_of_a_step_are_weighted_by_their_trajectories(path: Path) -> None:
    """A step logged in parts has the mean over all its trajectories; a row without a count weighs 1."""
    rows: list[Row] = [
        (5, None, {"val/reward": 1.0, "val/num_trajectories": 3.0}),
        (5, None, {"val/reward": 0.0, "val/num_trajectories": 1.0, "train/num_trajectories": 9.0}),
        (6, None, {"val/reward": 0.0}),
        (6, None, {"val/reward": 1.0, "val/num_trajectories": 0.0}),
        (7, None, {"val/loss": 1.0}),
        (5, None, {"val/reward": 0.25, "val/num_trajectories": 4.0}),
    ]
    path.write_bytes(rows_of(rows))
    assert means(path) == {5: 0.5, 6: 0.5}


def test_c069_a_late_row_is_credited_to_its_own_step(path: Path) -> None:
    """Steps come out ascending whatever the order of the rows, and a policy step takes the credit."""
    rows: list[Row] = [
        (8, None, {"train/loss": 1.0}),
        (5, None, {"val/reward": 0.9}),
        (9, 4, {"val/reward": 0.1}),
    ]
    path.write_bytes(rows_of(rows))
    assert list(means(path).items()) == [(4, 0.1), (5, 0.9)]


def test_c072_steps_past_9999_are_ordered_as_numbers(path: Path) -> None:
    """Step 10000 comes after step 9999."""
    path.write_bytes(rows_of([(n, None, {"val/reward": 1.0}) for n in (10_000, 9_999, 2)]))
    assert list(means(path)) == [2, 9_999, 10_000]


def test_c052_rows_that_a_rewind_took_back_do_not_count(path: Path) -> None:
    """After a rewind to step 100 the old rows of later steps are out; old rows up to it and new rows count."""
    history = History(path)
    history.append({"val/reward": 0.1, SPREAD: 0.1}, step=100)
    history.append({"val/reward": 0.9, SPREAD: 0.9}, step=101)
    rewind = Rewind(step=100, history_offset=history.size())
    history.append({"val/reward": 0.3, SPREAD: 0.3}, step=101)
    history.append({"val/reward": 0.4, SPREAD: 0.5}, step=102)
    assert means(path, rewinds=[rewind]) == {100: 0.1, 101: 0.3, 102: 0.4}
    assert means(path, SPREAD, [rewind]) == {100: 0.1, 101: 0.3, 102: 0.5}


def test_every_rewind_applies_to_the_rows_before_it(path: Path) -> None:
    """Two rewinds each take back what was written before them."""
    history, sizes = History(path), []
    for step in range(6):
        sizes.append(history.size())
        history.append({"val/reward": float(step)}, step=step)
    rewinds = [Rewind(step=4, history_offset=history.size()), Rewind(1, history_offset=sizes[4])]
    assert means(path, rewinds=rewinds) == {0: 0.0, 1: 1.0, 4: 4.0}


def test_a_rewind_that_comes_later_takes_back_what_was_counted(path: Path) -> None:
    """An index that has counted rows forgets those that are taken back."""
    history, rewinds = History(path), list[Rewind]()
    found = MetricIndex(path, lambda: rewinds)
    for step in range(4):
        history.append({"val/reward": float(step)}, step=step)
    assert list(found.means("val/reward")) == [0, 1, 2, 3]
    rewinds.append(Rewind(1, history.size()))
    history.append({"val/reward": 9.0}, step=2)
    assert found.means("val/reward") == {0: 0.0, 1: 1.0, 2: 9.0}


@given(st.floats(-1e6, 1e6), st.lists(st.integers(1, 100), min_size=1, max_size=6))
@settings(max_examples=examples(20))
def test_mean_of_equal_values_is_that_value(
    tmp_path_factory: pytest.TempPathFactory, value: float, weights: list[int]
) -> None:
    """A step logged in parts ties exactly with one logged whole."""
    path = tmp_path_factory.mktemp("index") / "history.jsonl"
    path.write_bytes(
        rows_of([(0, None, {"val/reward": value, "val/num_trajectories": w}) for w in weights])
    )
    assert means(path) == {0: value}


def test_a_split_with_a_slash_has_its_own_weights(path: Path) -> None:
    """The weight is that of the row's own split, however many slashes split and metric have."""
    rows: list[Row] = [
        (
            1,
            None,
            {f"val/hard/{key}": n for key in ("reward", "a/b")} | {"val/hard/num_trajectories": w},
        )
        for n, w in ((1.0, 9.0), (0.0, 1.0))
    ]
    path.write_bytes(rows_of(rows))
    assert means(path, "val/hard/reward") == {1: 0.9}
    assert means(path, "val/hard/a/b") == {1: 0.9}


@pytest.mark.parametrize("key", ["step", "policy_step", "recorded_at", "", "val/nothing"])
def test_what_is_no_metric_has_no_values(path: Path, key: str) -> None:
    """Asking for the names of other fields, or of nothing, finds nothing."""
    path.write_bytes(rows_of([(1, 0, {"val/reward": 1.0})]))
    assert means(path, key) == {}


def test_groups_without_a_spread_are_no_observation(path: Path) -> None:
    """The 0.0 that stands for "no group could have a spread" does not pull the trend down."""
    rows: list[Row] = [
        (0, None, {SPREAD: 0.4, SCORED: 2.0}),
        (1, None, {SPREAD: 0.0, SCORED: 0.0}),
        (2, None, {SPREAD: 0.2}),
    ]
    path.write_bytes(rows_of(rows))
    for size in (None, 1, 10_000):
        with blocks(size):
            assert factor(index(path)) == pytest.approx(0.5)


@pytest.mark.parametrize("rows", [[], [(3, None, {SPREAD: 0.5})], [(3, None, {"train/loss": 1.0})]])
def test_c056_no_trend_without_two_points(path: Path, rows: list[Row]) -> None:
    """No file, no row and one row leave the learning rate exactly as it is."""
    assert factor(index(path)) == 1.0
    path.write_bytes(rows_of(rows))
    assert factor(index(path)) == 1.0


def test_c057_a_spread_of_zero_throughout_changes_nothing(path: Path) -> None:
    """Zeros that were observed give exactly 1."""
    path.write_bytes(rows_of([(n, None, {SPREAD: 0.0, SCORED: 2.0}) for n in range(5)]))
    assert factor(index(path)) == 1.0


@pytest.mark.parametrize("num_rows_before", [0, 99, 100, 300])
def test_c046_a_metric_that_appears_late_is_found(path: Path, num_rows_before: int) -> None:
    """However many rows come before the first one with the metric, also as whole numbers for long (C035)."""
    rows: list[Row] = [(n, None, {"train/loss": 1, SPREAD: 0}) for n in range(num_rows_before)]
    path.write_bytes(rows_of([*rows, (5000, None, {"val/reward": 0.9, SPREAD: 0.35})]))
    assert means(path) == {5000: 0.9}
    assert means(path, SPREAD)[5000] == 0.35


def test_a_question_about_a_new_metric_reads_the_history_again(path: Path) -> None:
    """Any key can be asked for at any time, and those asked for before stay right."""
    history, found = History(path), index(path)
    for step in range(3):
        history.append({"val/reward": 1.0 * step, "val/other": 2.0 * step}, step=step)
        assert found.means("val/reward")[step] == step
        assert found.means("val/other", [step, 99]) == {step: 2.0 * step}


def test_a_replaced_history_is_counted_anew(path: Path) -> None:
    """Nothing of the old file stays in the answers."""
    found = index(path)
    path.write_bytes(rows_of([(1, None, {"val/reward": 1.0}), (2, None, {"val/reward": 0.0})]))
    assert found.means("val/reward") == {1: 1.0, 2: 0.0}
    path.write_bytes(rows_of([(7, None, {"val/reward": 0.5})]))
    assert found.means("val/reward") == {7: 0.5}
    path.unlink()
    assert found.means("val/reward") == {}


_GOOD = b'{"val/reward": 0.5, "step": 1}\n'
_MORE = b'{"val/reward": 0.75, "step": 3}\n'
_ODD: dict[str, tuple[bytes, dict[int, float]]] = {
    "infinite elsewhere": (
        b'{"val/reward": 1, "train/grad_norm": Infinity, "step": 2}\n',
        {2: 1.0},
    ),
    "C037 NaN": (b'{"val/reward": NaN, "step": 2}\n', {}),
    "C042 torn, then appended": (b'{"val/reward": 1, "st\n', {}),
    "C042 two rows merged": (b'{"val/reward": 1, "st{"val/reward": 1, "step": 2}\n', {}),
    "NUL tail": (b"\0" * 512 + b"\n", {}),
    "NULs before a row": (b"\0" * 512 + b'{"val/reward": 1, "step": 2}\n', {2: 1.0}),
    "C048 byte order mark": (b'\xef\xbb\xbf{"val/reward": 1, "step": 2}\n', {2: 1.0}),
    "not UTF-8": (b'{"val/reward": 1, "x": "\xff", "step": 2}\n', {}),
    "1e400": (b'{"val/reward": 1e400, "step": 2}\n', {}),
    "1e400 elsewhere": (b'{"val/reward": 1, "x": 1e400, "step": 2}\n', {2: 1.0}),
    "list row": (b"[1]\n", {}),
    "C048 blank lines": (b"\n  \n\r\n", {}),
    "CRLF": (b'{"val/reward": 1, "step": 2}\r\n', {2: 1.0}),
    "U+2028": ('{"val/reward": 1, "x": "\u2028", "step": 2}\n'.encode(), {2: 1.0}),
    "lone surrogate": (b'{"val/reward": 1, "x": "\\ud800", "step": 2}\n', {2: 1.0}),
    "string value": (b'{"val/reward": "high", "step": 2}\n', {}),
    "string elsewhere": (b'{"val/reward": 1, "x": "high", "step": 2}\n', {2: 1.0}),
    "bool value": (b'{"val/reward": true, "step": 2}\n', {2: 1.0}),
    "2**70": (b'{"val/reward": %d, "step": 2}\n' % 2**70, {2: 2.0**70}),
    "step 2**63": (b'{"val/reward": 1, "step": %d}\n' % 2**63, {}),
    "float step": (b'{"val/reward": 1, "step": 2.0}\n', {2: 1.0}),
    "no step": (b'{"val/reward": 1}\n', {}),
    "step goes back": (b'{"val/reward": 1, "step": 0}\n', {0: 1.0}),
    "C052 step twice": (b'{"val/reward": 1, "step": 1}\n', {1: 0.75}),
    "null value": (b'{"val/reward": null, "step": 2}\n', {}),
}


@pytest.mark.parametrize("odd", _ODD)
@pytest.mark.parametrize("at_the_end", [False, True])
def test_an_odd_line_costs_nothing_but_itself(path: Path, odd: str, at_the_end: bool) -> None:
    """What upstream's reader failed on, or got wrong, is skipped or read as it stands."""
    line, expected = _ODD[odd]
    path.write_bytes(_GOOD + _MORE + line[:-1] if at_the_end else _GOOD + line + _MORE)
    assert means(path) == {1: 0.5, 3: 0.75, **expected}


def test_a_key_that_stands_twice_in_a_line_counts_last(path: Path) -> None:
    """Line by line, which is how a small file and a damaged block are read, the last value wins."""
    path.write_bytes(b'{"val/reward": 0.1, "val/reward": 0.9, "step": 1}\n')
    assert index(path).means("val/reward") == {1: 0.9}


@given(files(), st.integers(1, 300))
@settings(max_examples=examples(150))
def test_arbitrary_damage_costs_no_undamaged_row(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, size: int
) -> None:
    """Line by line and in blocks, the reader returns exactly the undamaged rows and never raises."""
    path = tmp_path_factory.mktemp("fuzz") / "history.jsonl"
    path.write_bytes(content)
    rows = History(path).rows()
    found = [
        {
            "step": row.step,
            "policy_step": row.policy_step,
            "recorded_at": row.recorded_at,
            "metrics": row.metrics,
            "offset": row.offset,
        }
        for row in rows
    ]
    assert found == plain_rows(content)
    for key, unless_zero in (("val/reward", None), (SPREAD, None), ("late/\u2028key", None)):
        expected = plain_points(content, key, unless_zero=unless_zero)
        for block in (None, size):
            with blocks(block):
                assert index(path).means(key) == pytest.approx(expected, rel=1e-9, abs=1e-9)
    points = plain_points(content, SPREAD, unless_zero=SCORED)
    with blocks(None):
        line_factor = factor(index(path))
    with blocks(size):
        assert factor(index(path)) == line_factor
    if all(abs(value) < 1e9 for value in points.values()):
        assert line_factor == pytest.approx(multiplier(points), rel=1e-6) or near_zero_start(points)


def near_zero_start(points: dict[int, float]) -> bool:
    """Whether the factor hangs on rounding: the fitted start is nothing beside the values."""
    steps, values = list(points), list(points.values())
    _, start = np.polyfit(np.array(steps) - steps[0], values, 1) if len(steps) > 1 else (0, 1)
    return bool(abs(start) <= 1e-6 * max(map(abs, values)))


@given(files(), st.lists(st.integers(0, 400), max_size=3))
@settings(max_examples=examples(50))
def test_appending_after_damage_keeps_every_whole_row(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, appended: list[int]
) -> None:
    """Rows that were there before an append are there after it, and so is the new one."""
    path = tmp_path_factory.mktemp("fuzz") / "history.jsonl"
    path.write_bytes(content)
    before = History(path).rows()
    for step in appended:
        History(path).append({"val/reward": float(step)}, step=step)
    rows = History(path).rows()
    assert rows[: len(before)] == before
    assert [row.step for row in rows[len(before) :]] == appended


@given(
    files(),
    st.lists(st.integers(0, 2000), max_size=4),
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 2000)), max_size=3),
    st.sampled_from([None, 1, 64, 500]),
)
@settings(max_examples=examples(150))
def test_answers_do_not_depend_on_when_one_asks(
    tmp_path_factory: pytest.TempPathFactory,
    content: bytes,
    ends: list[int],
    rewound: list[tuple[int, int]],
    size: int | None,
) -> None:
    """Asked again and again while the file grows, the last answers equal those of a first question, to the bit."""
    path = tmp_path_factory.mktemp("fuzz") / "history.jsonl"
    rewinds = [Rewind(step, offset) for step, offset in sorted(rewound, key=lambda r: r[1])]
    with blocks(size):
        asked = index(path, rewinds)
        path.write_bytes(b"")
        written = 0
        for end in [*sorted(ends), len(content)]:
            with path.open("ab") as file:
                file.write(content[written:end])
            written = max(written, min(end, len(content)))
            asked.means("val/reward")
            factor(asked)
    for block in (None, 77):
        with blocks(block):
            fresh = index(path, rewinds)
            for key in ("val/reward", SPREAD):
                assert fresh.means(key) == asked.means(key)
            assert factor(fresh) == factor(asked)
    expected = plain_points(content, "val/reward", rewinds)
    assert asked.means("val/reward") == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_damage_is_counted_the_same_in_blocks(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning with the number of lines that are no rows, whichever way the file is read."""
    path.write_bytes(
        rows_of([(1, None, {"val/reward": 1.0})]) + b'{"val/reward": 1.0}\n{"step": null}\n{"st\n'
    )
    monkeypatch.setattr(JsonLinesReader, "min_frame_bytes", 0)
    monkeypatch.setattr(JsonLinesReader, "block_bytes", 60)
    index(path).means("val/reward")
    assert [record.args for record in caplog.records] == [(path, 3)]


def test_a_small_history_is_read_without_polars(path: Path) -> None:
    """What most runs have costs a first question no import."""
    History(path).append({"val/reward": 1.0}, step=1)
    program = (
        "import pathlib, sys; from art.books.metric_index import MetricIndex\n"
        "assert MetricIndex(pathlib.Path(sys.argv[1]), list).means('val/reward') == {1: 1.0}\n"
        "assert 'polars' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program, str(path)], check=True)


def test_a_long_history_is_read_in_blocks_of_its_own_accord(path: Path) -> None:
    """Above the threshold frames are used, damaged blocks fall back, and all rows are there."""
    num_rows = 12_000
    pad = {f"train/metric_number_{n}": 0.123456789 for n in range(5)}
    rows: list[Row] = [
        (n, None, {**pad, "val/reward": n / 7, SPREAD: 1 + n}) for n in range(num_rows)
    ]
    content = rows_of(rows)
    assert len(content) > JsonLinesReader.min_frame_bytes
    path.write_bytes(content[:-1] + b"x\n" + rows_of([(num_rows, None, {"val/reward": 0.5})]))
    found = index(path)
    assert found.means("val/reward") == {
        **{n: n / 7 for n in range(num_rows - 1)},
        num_rows: 0.5,
    }
    assert factor(found) == 10.0
    assert len(read_rows(path, lambda line, _: line.get("step"))) == num_rows
