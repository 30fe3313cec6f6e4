from __future__ import annotations

import json
import math
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from art.books.history import History, HistoryRow, clean_metrics
from art.books.ledger import TrainedStep
from art.books.metric_index import MetricIndex
from art.errors import LogError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.jsonl"


@pytest.fixture
def history(path: Path) -> History:
    return History(path)


def means(path: Path, key: str = "val/reward") -> dict[int, float]:
    return MetricIndex(path, list).means(key)


def strict_rows(path: Path) -> list[dict[str, Any]]:
    """The file as a strict parser sees it: no NaN, no Infinity."""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


def test_row_on_disk_is_strict_json_with_step_and_time(path: Path, history: History) -> None:
    """A row holds the metrics as floats, an integer step, and a time with its offset."""
    history.append({"train/loss": 1.0}, step=3)
    line = path.read_text()
    (value,) = strict_rows(path)
    assert list(value) == ["train/loss", "step", "recorded_at"]
    assert '"train/loss": 1.0, "step": 3,' in line
    assert datetime.fromisoformat(value["recorded_at"]).utcoffset() == timedelta(0)


def test_row_comes_back(history: History) -> None:
    """What was appended is read, with the policy step and the offset of each line."""
    moment = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
    history.append({"val/reward": 0.5}, step=4, recorded_at=moment)
    size = history.size()
    history.append({"train/reward": 0.25}, step=5, policy_step=4, recorded_at=moment)
    time = moment.isoformat()
    assert history.rows() == [
        HistoryRow(4, None, time, {"val/reward": 0.5}, 0),
        HistoryRow(5, 4, time, {"train/reward": 0.25}, size),
    ]
    assert [r.credited_step for r in history.rows()] == [4, 4]


def test_naive_time_is_local(path: Path, history: History) -> None:
    """A time without a zone is taken as local, and written with its offset."""
    naive = datetime(2026, 1, 2, 3, 4)  # noqa: DTZ001 - what a caller may pass
    history.append({}, step=0, recorded_at=naive)
    assert datetime.fromisoformat(strict_rows(path)[0]["recorded_at"]) == naive.astimezone()


def test_numpy_steps_are_written_as_integers(path: Path, history: History) -> None:
    """A step that numpy counted is an integer in the file."""
    history.append({}, step=np.int64(7), policy_step=np.int32(6))  # type: ignore[arg-type] # users pass these
    assert strict_rows(path)[0]["step"] == 7
    assert strict_rows(path)[0]["policy_step"] == 6


def test_nonfinite_number_cannot_be_appended(path: Path, history: History) -> None:
    """NaN is refused before anything is written; `clean_metrics` leaves it out."""
    with pytest.raises(ValueError, match="JSON"):
        history.append({"train/loss": math.nan}, step=0)
    assert not path.exists()


def test_lone_surrogates_in_keys_survive(path: Path, history: History) -> None:
    """A key that UTF-8 cannot hold is escaped, and comes back."""
    history.append({"val/\ud800": 1.0}, step=0)
    assert path.read_bytes().isascii()
    assert history.rows()[0].metrics == {"val/\ud800": 1.0}


def test_size_of_no_file_is_zero(history: History) -> None:
    """Without a file the history is empty."""
    assert history.size() == 0
    assert history.rows() == []


def test_write_error_names_the_file(path: Path, history: History) -> None:
    """A history that cannot be written is an error of the log with its path."""
    path.mkdir()
    with pytest.raises(LogError, match=str(path)):
        history.append({}, step=0)


def test_c033_scalars_of_every_kind_become_floats() -> None:
    """Numbers of numpy and the standard library and booleans are plain floats in the row."""
    cleaned = clean_metrics(
        {
            "int": 1,
            "bool": True,
            "float32": np.float32(0.5),
            "int64": np.int64(3),
            "np_bool": np.bool_(True),
            "zero_dim": np.array(2.5),
            "decimal": Decimal("0.25"),
            "fraction": Fraction(1, 4),
            "huge": 2**70,
        },
        "val",
    )
    assert cleaned == {
        "val/int": 1.0,
        "val/bool": 1.0,
        "val/float32": 0.5,
        "val/int64": 3.0,
        "val/np_bool": 1.0,
        "val/zero_dim": 2.5,
        "val/decimal": 0.25,
        "val/fraction": 0.25,
        "val/huge": float(2**70),
    }
    assert {type(value) for value in cleaned.values()} == {float}


@pytest.mark.local
def test_c033_torch_scalars_become_floats() -> None:
    """A zero-dimensional tensor is a number, also one that carries a gradient."""
    import torch

    value = torch.tensor(0.5, dtype=torch.bfloat16, requires_grad=True)
    assert clean_metrics({"x": value}, "val") == {"val/x": 0.5}


@pytest.mark.parametrize(
    "value", ["1.0", None, [1.0], np.array([1.0]), 1j, np.str_("1"), object(), {"a": 1}]
)
def test_what_is_no_scalar_raises_with_its_key(value: object) -> None:
    """Strings, None, arrays and objects are refused, naming the metric."""
    with pytest.raises(TypeError, match="metric 'bad'"):
        clean_metrics({"good": 1.0, "bad": value}, "val")


def test_integer_too_large_for_a_float_raises_with_its_key() -> None:
    """A number that no float can hold is refused, naming the metric."""
    with pytest.raises(OverflowError, match="metric 'bad'"):
        clean_metrics({"bad": 10**400}, "val")


def test_key_that_is_no_string_raises() -> None:
    """Metric names are strings."""
    with pytest.raises(TypeError, match="metric name 3"):
        clean_metrics({3: 1.0}, "val")  # type: ignore[dict-item] # the mistake under test


def test_c037_nonfinite_values_are_left_out_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    """NaN and infinities leave no key but a count, with one warning; counts given add up."""
    metrics = {"a": math.nan, "b": 1.0, "c": math.inf, "d": Decimal("NaN")}
    assert clean_metrics(metrics, "val") == {"val/b": 1.0, "val/num_nonfinite": 3.0}
    assert clean_metrics({"a": math.nan, "num_nonfinite": 2}, "val") == {"val/num_nonfinite": 3.0}
    assert clean_metrics({"b": 1.0}, "val") == {"val/b": 1.0}
    assert len(caplog.records) == 2


def test_c037_a_nan_of_upstream_costs_only_its_key(path: Path, history: History) -> None:
    """Lines with NaN, Infinity or 1e400 keep their finite keys, and other rows are untouched."""
    path.write_text(
        '{"val/a": NaN, "val/b": 1, "step": 1}\n'
        '{"val/a": -Infinity, "val/b": 1e400, "val/c": 2, "step": 2}\n'
        f'{{"val/a": {10**400}, "val/b": 3, "step": 3}}\n'
    )
    assert [r.metrics for r in history.rows()] == [{"val/b": 1.0}, {"val/c": 2.0}, {"val/b": 3.0}]


def test_type_drift_costs_only_the_value(path: Path, history: History) -> None:
    """A string, null or list under a metric is skipped, a bool is a number, other keys are kept."""
    path.write_text(
        '{"a/x": "high", "a/y": true, "a/z": null, "a/w": [1], "a/v": {"b": 1}, "a/u": 2, "step": 1}\n'
    )
    assert history.rows()[0].metrics == {"a/y": 1.0, "a/u": 2.0}


def test_bad_policy_step_and_time_are_none(path: Path, history: History) -> None:
    """A row with odd extras is still a row."""
    path.write_text(
        '{"step": 2.0, "policy_step": "1", "recorded_at": 5}\n{"step": 3, "policy_step": 2.0}\n'
    )
    assert [(r.step, r.policy_step, r.recorded_at) for r in history.rows()] == [
        (2, None, None),
        (3, 2, None),
    ]


def test_c035_integers_before_fractions_are_exact(path: Path, history: History) -> None:
    """A metric that is a whole number for 150 rows and then 0.5 is read as it stands."""
    path.write_text(
        "".join(f'{{"val/x": 1, "step": {i}}}\n' for i in range(150))
        + '{"val/x": 0.5, "step": 150}\n'
    )
    assert means(path, "val/x")[150] == 0.5
    assert type(history.rows()[0].metrics["val/x"]) is float


def test_c046_a_metric_first_seen_after_many_rows_is_found(path: Path, history: History) -> None:
    """A key that appears in row 121 for the first time is read."""
    for step in range(120):
        history.append({"train/loss": 1.0}, step=step)
    history.append({"val/reward": 0.9}, step=120)
    assert means(path) == {120: 0.9}


def test_c045_restarts_after_a_torn_row_never_fail(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Three processes that die in the middle of a row leave all whole rows readable, before and after."""
    for step in range(3):
        history = History(path)
        history.append({"val/reward": float(step)}, step=step)
        with path.open("ab") as file:
            file.write(b'{"val/reward": 0.')
    assert means(path) == {0: 0.0, 1: 1.0, 2: 2.0}
    assert len(caplog.records) == 1


def test_c050_a_process_that_polls_while_we_append_sees_only_whole_rows(path: Path) -> None:
    """A reader beside several writers never fails and ends with every row."""
    program = (
        "import sys, pathlib; from art.books.history import History\n"
        "history = History(pathlib.Path(sys.argv[1]))\n"
        "for step in range(200): history.append({'val/x' + 'y' * 300: 1.0}, step=step)"
    )
    history, index = History(path), MetricIndex(path, list)
    writers = [subprocess.Popen([sys.executable, "-c", program, str(path)]) for _ in range(2)]
    while any(writer.poll() is None for writer in writers):
        history.rows()
        index.means("val/reward")
    assert [writer.returncode for writer in writers] == [0, 0]
    assert len(history.rows()) == 400
    assert len(path.read_bytes().splitlines()) == 400


@given(
    st.dictionaries(
        st.text(max_size=8),
        st.one_of(st.floats(), st.integers(-(2**80), 2**80), st.booleans()),
        max_size=6,
    )
)
def test_any_clean_metrics_come_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, metrics: dict[str, float]
) -> None:
    """Whatever numbers and names go in, the finite ones come out the same from a strict line."""
    path = tmp_path_factory.mktemp("history") / "history.jsonl"
    cleaned = clean_metrics(metrics, "val")
    History(path).append(cleaned, step=1)
    strict_rows(path)
    assert History(path).rows()[0].metrics == cleaned


def test_c054_an_append_costs_the_same_however_long_the_file_is(
    path: Path, history: History
) -> None:
    """Neither an append nor the questions after it read the file again."""
    row = {"val/reward": 0.5, "train/reward_std_dev": 0.1, "train/loss": 1.0}
    index, trained = MetricIndex(path, list), TrainedStep(path)
    num_bytes = []
    for step in range(0, 10_000, 1000):
        with path.open("a") as file:
            file.writelines(json.dumps({**row, "step": step + i}) + "\n" for i in range(1000))
        for ask in (False, True):
            before = bytes_read()
            if ask:
                history.append(row, step=step + 1000)
            assert index.means("val/reward", [step]) == {step: 0.5}
            assert index.spread() is not None
            assert trained.step() >= step
        # A row holds 133 bytes; the looks at the counter itself cost more in a process that has read much.
        num_bytes.append(bytes_read() - before)
    assert max(num_bytes) < 20 * history_row_bytes(path)
    assert max(num_bytes) - min(num_bytes) < 20


def history_row_bytes(path: Path) -> int:
    return len(path.read_bytes().splitlines()[-1])


def bytes_read() -> int:
    """What this process has read through system calls."""
    text = Path("/proc/self/io").read_text()
    return int(text.split("rchar: ")[1].split()[0])
