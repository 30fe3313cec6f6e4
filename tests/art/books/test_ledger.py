from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from art.books.history import HistoryRow
from art.books.ledger import Ledger, Rewind, step_without_ledger

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "steps.jsonl"


def test_no_ledger_has_no_step(path: Path) -> None:
    """Without a line there is no step, which is not step 0."""
    assert Ledger(path).current_step() is None
    assert Ledger(path).rewinds() == []


def test_last_line_wins(path: Path) -> None:
    """The step is that of the last commit or rewind, also for a ledger that reads it anew."""
    ledger = Ledger(path)
    for write, step in [(ledger.commit, 1), (ledger.commit, 2)]:
        write(step)
        assert ledger.current_step() == Ledger(path).current_step() == step
    ledger.rewind(1, 1234)
    assert ledger.current_step() == 1
    ledger.commit(2, adopted=True)
    assert ledger.current_step() == Ledger(path).current_step() == 2
    assert ledger.rewinds() == [Rewind(1, 1234)]


def test_lines_on_disk(path: Path) -> None:
    """A commit holds step and time, a rewind the step and the size of the history."""
    ledger = Ledger(path)
    ledger.commit(5)
    ledger.commit(6, adopted=True)
    ledger.rewind(3, 1234)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(line.pop("time") for line in lines)
    assert lines == [
        {"step": 5},
        {"step": 6, "adopted": True},
        {"rewind_to": 3, "history_offset": 1234},
    ]


def test_c045_torn_and_foreign_lines_are_skipped(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A ledger whose writer died in the middle of a line goes on with the next one."""
    path.write_bytes(b'{"step": 4, "time": "x"}\n{"rewind_to": 3}\n{"step": 5, "ti')
    ledger = Ledger(path)
    assert ledger.current_step() == 4
    ledger.commit(5)
    assert ledger.current_step() == 5
    assert len(caplog.records) == 1


def test_step_without_a_ledger_is_the_highest_one_that_was_trained() -> None:
    """Rows of rollouts and of the user's own metrics do not move the step; without trained rows it is 0."""
    rows = [
        HistoryRow(2, None, None, {"train/loss": 1.0}, 0),
        HistoryRow(1, None, None, {"train/grad_norm": 1.0}, 0),
        HistoryRow(100, None, None, {"val/reward": 1.0, "train/reward": 1.0, "train/mine": 1.0}, 0),
    ]
    assert step_without_ledger(rows) == 2
    assert step_without_ledger(rows[2:]) == 0
    assert step_without_ledger([]) == 0


def test_c160_the_step_of_an_upstream_directory_is_found_from_any_training_metric() -> None:
    """A row that holds only one of the names that upstream's train calls log is enough."""
    for name in ["policy_loss", "entropy", "learning_rate", "num_groups_trainable", "kl_div"]:
        assert step_without_ledger([HistoryRow(7, None, None, {f"train/{name}": 0.0}, 0)]) == 7


def test_a_step_below_zero_is_not_taken_from_a_history() -> None:
    """A baseline that was logged at -1 does not make the next train step 0."""
    assert step_without_ledger([HistoryRow(-1, None, None, {"train/loss": 0.0}, 0)]) == 0
