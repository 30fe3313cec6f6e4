from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from art.books.history import History
from art.books.jsonl import JsonLinesReader
from art.books.ledger import Ledger, Rewind, TrainedStep
from art.errors import LogError
from tests.art.books.history_files import blocks

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


def trained_step(path: Path, rows: list[tuple[int, dict[str, float]]]) -> int:
    """The step of a directory whose history has these rows, also where it is read as a frame."""
    path.unlink(missing_ok=True)
    for step, metrics in rows:
        History(path).append(metrics, step=step)
    found = TrainedStep(path).step()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JsonLinesReader, "min_frame_bytes", 0)
        assert TrainedStep(path).step() == found
    return found


def test_step_without_a_ledger_is_the_highest_one_that_was_trained(path: Path) -> None:
    """Rows of rollouts and of the user's own metrics do not move the step; without trained rows it is 0."""
    rows = [
        (2, {"train/loss": 1.0}),
        (1, {"train/grad_norm": 1.0}),
        (100, {"val/reward": 1.0, "train/reward": 1.0, "train/mine": 1.0}),
    ]
    assert trained_step(path, rows) == 2
    assert trained_step(path, rows[2:]) == 0
    assert trained_step(path, []) == 0


def test_step_without_a_ledger_keeps_up_with_the_history(path: Path) -> None:
    """Each question looks at what was appended since the last one."""
    trained = TrainedStep(path)
    found = []
    for step in (3, 5, 4):
        History(path).append({"train/loss": 1.0}, step=step)
        found.append(trained.step())
    assert found == [3, 5, 5]


def test_c160_the_step_of_an_upstream_directory_is_found_from_any_training_metric(
    path: Path,
) -> None:
    """A row that holds only one of the names that upstream's train calls log is enough."""
    for name in ["policy_loss", "entropy", "learning_rate", "num_groups_trainable", "kl_div"]:
        assert trained_step(path, [(7, {f"train/{name}": 0.0})]) == 7


def test_a_step_below_zero_is_not_taken_from_a_history(path: Path) -> None:
    """A baseline that was logged at -1 does not make the next train step 0."""
    assert trained_step(path, [(-1, {"train/loss": 0.0})]) == 0


def test_a_long_ledger_is_read_the_same(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read as frames, with a torn line in one block, it tells the same step, rewinds and commits."""
    ledger = Ledger(path)
    for step in range(1, 40):
        ledger.commit(step)
    with path.open("ab") as file:
        file.write(b'{"step": 4')
    ledger.rewind(20, 1234)
    ledger.commit(21, adopted=True)
    monkeypatch.setattr(JsonLinesReader, "min_frame_bytes", 0)
    monkeypatch.setattr(JsonLinesReader, "block_bytes", 200)
    fresh = Ledger(path)
    assert fresh.current_step() == ledger.current_step() == 21
    assert fresh.rewinds() == ledger.rewinds() == [Rewind(20, 1234)]
    assert fresh.committed_steps() == ledger.committed_steps() == set(range(1, 40))


_commits = st.integers(0, 9).map(lambda step: json.dumps({"step": step}).encode())
_rewinds = st.builds(
    lambda step, offset: json.dumps({"rewind_to": step, "history_offset": offset}).encode(),
    st.integers(0, 9),
    st.integers(0, 999),
)
_ESCAPED = b'{"rewind\\u005fto": 7, "history_offset": 5}'
_others = st.sampled_from(
    [
        *(
            b"",
            b"rewind_to",
            b'{"rewind_to": 3}',
            b'{"step": null}',
            b'{"step": 4',
            b"\xff",
            b"\0\0",
        ),
        _ESCAPED,
        b'{"step": 3, "rewind_to": 1, "history_offset": 5}',
        b'\xef\xbb\xbf{"rewind_to": 2.0, "history_offset": 5}\r',
        b'{"by": "rewind_to", "step": 8}',
    ]
)


@example([_ESCAPED, b'{"step": 8}'], 0, 200)
@given(
    st.lists(_commits | _rewinds | _others, max_size=12), st.integers(0, 40), st.integers(1, 200)
)
def test_a_ledger_of_any_content_is_read_the_same_in_blocks(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], cut: int, size: int
) -> None:
    """Where only the lines that matter are parsed, these are no fewer than line by line."""
    path = tmp_path_factory.mktemp("ledger") / "steps.jsonl"
    content = b"".join(line + b"\n" for line in lines)
    path.write_bytes(content[: max(0, len(content) - cut)])

    def answers() -> tuple[object, ...]:
        ledger = Ledger(path)
        return ledger.current_step(), ledger.rewinds(), ledger.committed_steps()

    line_by_line = answers()
    with blocks(size):
        assert answers() == line_by_line


def test_a_commit_whose_line_could_not_be_written_still_counts(path: Path) -> None:
    """The checkpoint stands, so its number is not given twice; the lines are made good with the next that can be."""
    ledger = Ledger(path)
    path.mkdir()  # where a file should be: nothing can be appended
    with pytest.raises(LogError):
        ledger.commit(1)
    with pytest.raises(LogError):
        ledger.commit(2)

    path.rmdir()
    assert ledger.current_step() == 2
    assert ledger.committed_steps() == {1, 2}
    ledger.commit(3)

    assert Ledger(path).current_step() == 3
    assert Ledger(path).committed_steps() == {1, 2, 3}


def test_a_rewind_after_a_lost_line_is_the_last_word(path: Path) -> None:
    """The line that is owed is written before the rewind, so the step is the rewound one."""
    ledger = Ledger(path)
    path.mkdir()
    with pytest.raises(LogError):
        ledger.commit(5)
    path.rmdir()

    ledger.rewind(3, 0)

    assert ledger.current_step() == 3
    assert Ledger(path).current_step() == 3
