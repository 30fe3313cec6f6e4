"""The only reader and writer of `steps.jsonl`: which step the model is at, and how it came there."""

from __future__ import annotations

import contextlib
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
from art.books.jsonl import JsonLinesReader, LineSink, as_step

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
        self._account = _Account()
        self._reader = JsonLinesReader(path, self._account)
        self._lock = threading.Lock()
        # Commits whose lines could not be written. The checkpoints stand, so their numbers are taken all the same.
        self._owed: list[dict[str, Any]] = []

    def current_step(self) -> int | None:
        """Return the step of the last event, or None where there is no ledger yet."""
        with self._up_to_date() as account:
            return self._owed[-1]["step"] if self._owed else account.step

    def rewinds(self) -> list[Rewind]:
        """Return all rewinds in order."""
        with self._up_to_date() as account:
            return list(account.rewinds)

    def committed_steps(self) -> set[int]:
        """Return the step of every train call that ended cleanly."""
        with self._up_to_date() as account:
            return {*account.committed, *(line["step"] for line in self._owed)}

    @contextlib.contextmanager
    def _up_to_date(self) -> Iterator[_Account]:
        with self._lock:
            self._reader.refresh()
            yield self._account

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


class _Account(LineSink):
    """What the lines of the ledger come to."""

    @property
    def columns(self) -> Mapping[str, type]:
        return {"step": int, "rewind_to": int, "history_offset": int}

    def start_over(self) -> None:
        self.step: int | None = None
        self.rewinds: list[Rewind] = []
        self.committed = array("q")

    @override
    def add_line(self, line: dict[str, Any], offset: int) -> bool:
        return self._add(*(as_step(line.get(key)) for key in self.columns))

    @override
    def add_frame(self, frame: pl.DataFrame, start: int, stop: int) -> int:
        import polars as pl

        # Nearly all lines are commits: what stands between them is taken one by one.
        num_refused = 0
        rows = frame.with_row_index("at")
        begin = 0
        for at, step, rewind_to, history_offset in (
            rows.filter(pl.col("step").is_null()).select("at", *self.columns).iter_rows()
        ):
            self._commit_all(frame["step"][begin:at])
            num_refused += not self._add(step, rewind_to, history_offset)
            begin = at + 1
        self._commit_all(frame["step"][begin:])
        return num_refused

    def _commit_all(self, steps: pl.Series) -> None:
        if len(steps) > 0:
            self.committed.extend(array("q", steps.to_list()))
            self.step = self.committed[-1]

    def _add(self, step: int | None, rewind_to: int | None, history_offset: int | None) -> bool:
        if step is not None:
            self.committed.append(step)
            self.step = step
        elif rewind_to is not None and history_offset is not None:
            self.rewinds.append(Rewind(rewind_to, history_offset))
            self.step = rewind_to
        else:
            return False
        return True


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
