"""The only reader and writer of `steps.jsonl`: which step the model is at, and how it came there."""

from __future__ import annotations

import json
import operator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from art.books.atomic import append_line
from art.books.jsonl import JsonLinesReader, as_step

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from art.books.history import HistoryRow

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
class Commit:
    """A train call ended, and checkpoint `step` stands.

    Attributes:
        step: The step after the call.
        adopted: The frontend died before it could write the line; the backend told the step at a later start.
    """

    step: int
    adopted: bool = False


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


Event: TypeAlias = Commit | Rewind


class Ledger:
    """The step account of one model, on disk.

    Args:
        path: The file; it is made by the first write.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reader: JsonLinesReader[Event] = JsonLinesReader(path, _parse_event)

    def current_step(self) -> int | None:
        """Return the step of the last event, or None where there is no ledger yet."""
        events = self._reader.rows()
        return events[-1].step if events else None

    def rewinds(self) -> list[Rewind]:
        """Return all rewinds in order."""
        return [event for event in self._reader.rows() if isinstance(event, Rewind)]

    def commit(self, step: int, adopted: bool = False) -> None:
        """Record a finished train call; on the disk when this returns.

        Raises:
            LogError: The line could not be written.
        """
        self._append({"step": operator.index(step), **({"adopted": True} if adopted else {})})

    def rewind(self, step: int, history_offset: int) -> None:
        """Record that the model went back to `step`; on the disk when this returns.

        Raises:
            LogError: The line could not be written.
        """
        self._append({"rewind_to": operator.index(step), "history_offset": history_offset})

    def _append(self, line: dict[str, Any]) -> None:
        line["time"] = datetime.now(UTC).isoformat()
        append_line(self._path, json.dumps(line).encode("ascii"), durable=True)


def step_without_ledger(rows: Iterable[HistoryRow]) -> int:
    """Return the step of a directory that has no ledger: the highest one with training metrics, else 0."""
    steps = (row.step for row in rows if not TRAINING_METRICS.isdisjoint(row.metrics))
    return max(0, max(steps, default=0))


def _parse_event(line: dict[str, Any], _offset: int) -> Event | None:
    step = as_step(line.get("step"))
    if step is not None:
        return Commit(step, adopted=line.get("adopted") is True)
    rewind_to = as_step(line.get("rewind_to"))
    history_offset = as_step(line.get("history_offset"))
    if rewind_to is not None and history_offset is not None:
        return Rewind(rewind_to, history_offset)
    return None
