"""The only reader and writer of `steps.jsonl`: which step the model is at, and how it came there."""

from __future__ import annotations

import json
import operator
import threading
from array import array
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from art.books.atomic import append_line
from art.books.history import parse_row
from art.books.jsonl import JsonLinesReader, LineSink, as_step, parse_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import polars as pl

# What a train call records and a rollout does not: by these keys the step of a directory without a ledger
# is found.
TRAINING_METRICS = frozenset(
    {
        "train/loss",
        "train/policy_loss",
        "train/grad_norm",
        "train/entropy",
        "train/kl_div",
        "train/kl_policy_ref",
        "train/learning_rate",
        "train/num_groups_submitted",
        "train/num_groups_trainable",
    }
)
_KEYS = ("step", "rewind_to", "history_offset")


@dataclass(frozen=True, slots=True)
class Rewind:
    """The model went back to an earlier step.

    Attributes:
        step: The step it went back to.
        history_offset: Size of the history at that moment, in bytes: rows of higher steps before it belong to
            a life that is over.
    """

    step: int
    history_offset: int


class Ledger:
    """The step account of one model, on disk. Safe to use from several threads.

    Args:
        path: The file; it is made by the first write.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = _Position()
        self._position_reader = JsonLinesReader(path, self._position)
        self._commits = _Commits()
        self._commits_reader = JsonLinesReader(path, self._commits)
        self._lock = threading.Lock()
        # Commits whose lines could not be written. The checkpoints stand, so their numbers are taken all the same.
        self._owed: list[dict[str, Any]] = []

    def current_step(self) -> int | None:
        """Return the step of the last event, or None where there is no ledger yet."""
        with self._lock:
            self._position_reader.refresh()
            return self._owed[-1]["step"] if self._owed else self._position.step

    def rewinds(self) -> list[Rewind]:
        """Return all rewinds in order."""
        with self._lock:
            self._position_reader.refresh()
            return list(self._position.rewinds)

    def committed_steps(self) -> set[int]:
        """Return the step of every train call that ended cleanly."""
        with self._lock:
            self._commits_reader.refresh()
            return {*self._commits.steps, *(line["step"] for line in self._owed)}

    def commit(self, step: int, adopted: bool = False) -> None:
        """Record a finished train call; on the disk when this returns.

        Raises:
            LogError: The line could not be written. This process goes on from `step` all the same, and writes
                the line with the next one.
        """
        self._owed.append({"step": operator.index(step), **({"adopted": True} if adopted else {})})
        self._write_owed()

    def rewind(self, step: int, history_offset: int) -> None:
        """Record that the model went back to `step`; on the disk when this returns.

        Raises:
            LogError: The line could not be written.
        """
        self._write_owed()
        self._append({"rewind_to": operator.index(step), "history_offset": history_offset})

    def _write_owed(self) -> None:
        while self._owed:
            self._append(self._owed[0])
            del self._owed[0]

    def _append(self, line: dict[str, Any]) -> None:
        timed = {**line, "time": datetime.now(UTC).isoformat()}
        append_line(self._path, json.dumps(timed).encode("ascii"), durable=True)


class _Position(LineSink):
    """Where the lines of the ledger lead: the rewinds, and the step of the last event."""

    def start_over(self) -> None:
        self.step: int | None = None
        self.rewinds: list[Rewind] = []

    @override
    def add_line(self, line: dict[str, Any], offset: int) -> bool:
        event = _event(line)
        if isinstance(event, Rewind):
            self.rewinds.append(event)
        if event is not None:
            self.step = _step_after(event)
        return event is not None

    @override
    def add_lines(self, data: bytes) -> int | None:
        if b"\\" in data:  # which may spell the key of a rewind
            return None
        # Nearly all lines are commits, and only the last of them matters. What stands between is not parsed, so
        # no damage is told there unless it names a rewind.
        rewinds = [_event_on(line) for line in _lines_with(data, b"rewind_to")]
        self.rewinds += [event for event in rewinds if isinstance(event, Rewind)]
        events = map(_event_on, _lines_backwards(data))
        last = next((event for event in events if event is not None), None)
        if last is not None:
            self.step = _step_after(last)
        return rewinds.count(None)


class _Commits(LineSink):
    """The steps of all commits."""

    @property
    def columns(self) -> Mapping[str, type]:
        return dict.fromkeys(_KEYS, int)

    def start_over(self) -> None:
        self.steps = array("q")

    @override
    def add_line(self, line: dict[str, Any], offset: int) -> bool:
        event = _event(line)
        if isinstance(event, int):
            self.steps.append(event)
        return event is not None

    @override
    def add_frame(self, frame: pl.DataFrame, start: int, stop: int) -> int:
        steps = frame["step"].drop_nulls()
        self.steps.extend(array("q", steps.to_list()))
        rewinds = frame.filter(frame["step"].is_null()).drop_nulls(["rewind_to", "history_offset"])
        return frame.height - len(steps) - len(rewinds)


def _event(line: dict[str, Any]) -> int | Rewind | None:
    """Return the step of a commit, a rewind, or None where the line is neither."""
    step, rewind_to, history_offset = (as_step(line.get(key)) for key in _KEYS)
    if step is not None:
        return step
    if rewind_to is None or history_offset is None:
        return None
    return Rewind(rewind_to, history_offset)


def _event_on(line: bytes) -> int | Rewind | None:
    value, _ = parse_line(line)
    return None if value is None else _event(value)


def _step_after(event: int | Rewind) -> int:
    return event.step if isinstance(event, Rewind) else event


def _lines_with(data: bytes, text: bytes) -> Iterator[bytes]:
    stop = 0
    while (found := data.find(text, stop)) >= 0:
        start = data.rfind(b"\n", 0, found) + 1
        stop = data.find(b"\n", found) + 1 or len(data)
        yield data[start:stop]


def _lines_backwards(data: bytes) -> Iterator[bytes]:
    stop = len(data)
    while stop > 0:
        start = data.rfind(b"\n", 0, stop - 1) + 1
        yield data[start:stop]
        stop = start


class TrainedStep:
    """The step of a directory that has no ledger: the highest one with training metrics, else 0.

    Args:
        path: The history.
    """

    def __init__(self, path: Path) -> None:
        self._highest = _HighestTrained()
        self._reader = JsonLinesReader(path, self._highest)
        self._lock = threading.Lock()

    def step(self) -> int:
        """Return the step as the history has it now."""
        with self._lock:
            self._reader.refresh()
            return self._highest.step


class _HighestTrained(LineSink):
    @property
    def columns(self) -> Mapping[str, type]:
        return {"step": int, **dict.fromkeys(sorted(TRAINING_METRICS), float)}

    def start_over(self) -> None:
        self.step = 0

    def add_line(self, line: dict[str, Any], offset: int) -> bool:
        row = parse_row(line, offset)
        if row is not None and not TRAINING_METRICS.isdisjoint(row.metrics):
            self.step = max(self.step, row.step)
        return row is not None

    @override
    def add_frame(self, frame: pl.DataFrame, start: int, stop: int) -> int:
        import polars as pl

        is_trained = pl.any_horizontal(pl.col(sorted(TRAINING_METRICS)).is_not_null())
        steps = frame.filter(is_trained)["step"].drop_nulls()
        self.step = max([self.step, *steps.sort().tail(1)])
        return frame["step"].null_count()
