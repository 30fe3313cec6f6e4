"""The only reader and writer of `history.jsonl`: one row of metrics a line.

Several rows may belong to one step: `art.books.metric_index` says what a metric was at a step.
"""

from __future__ import annotations

import json
import logging
import math
import operator
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from art.books.atomic import append_line
from art.books.jsonl import JsonLinesReader, LineSink, as_step, read_rows
from art.rules.scalars import to_float

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """One line of the history.

    Attributes:
        step: The step that the row was logged at.
        policy_step: The step of the policy that earned the metrics, where it is not `step`.
        recorded_at: ISO 8601 time, where known.
        metrics: Finite numbers by `{split}/{metric}`.
        offset: Byte offset of the line in the file.
    """

    step: int
    policy_step: int | None
    recorded_at: str | None
    metrics: dict[str, float]
    offset: int

    @property
    def credited_step(self) -> int:
        """The step whose checkpoint earned the metrics."""
        return self.step if self.policy_step is None else self.policy_step


class History:
    """The metrics of one model, on disk.

    Args:
        path: The file; it is made by the first `append`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(
        self,
        metrics: Mapping[str, float],
        *,
        step: int,
        policy_step: int | None = None,
        recorded_at: datetime | None = None,
    ) -> None:
        """Add a row; the cost does not depend on the size of the file.

        Args:
            metrics: Finite numbers by full key, as `clean_metrics` returns them.
            step: The step to log at.
            policy_step: The step of the policy that earned the metrics, where it is not `step`.
            recorded_at: Now, if None; a naive time is local.

        Raises:
            ValueError: A number is not finite; nothing was written.
            LogError: The row could not be written; the file is as it was.
        """
        row: dict[str, Any] = {key: float(value) for key, value in metrics.items()}
        row["step"] = operator.index(step)
        if policy_step is not None:
            row["policy_step"] = operator.index(policy_step)
        moment = datetime.now(UTC) if recorded_at is None else recorded_at.astimezone(UTC)
        row["recorded_at"] = moment.isoformat()
        append_line(self._path, json.dumps(row, allow_nan=False).encode("ascii"))

    def rows(self) -> list[HistoryRow]:
        """Return all readable rows in file order; see `JsonLinesReader` for what is skipped.

        Every row becomes an object: for a question about a long history ask `MetricIndex`.
        """
        return read_rows(self._path, parse_row)

    def keys(self) -> set[str]:
        """Return every metric key of the readable rows."""
        keys = _Keys()
        JsonLinesReader(self._path, keys).refresh()
        return keys.found

    def size(self) -> int:
        """Return the size of the file in bytes, 0 if there is none."""
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0


class _Keys(LineSink):
    def start_over(self) -> None:
        self.found: set[str] = set()

    def add_line(self, line: dict[str, Any], offset: int) -> bool:
        row = parse_row(line, offset)
        if row is not None:
            self.found.update(row.metrics)
        return row is not None


def clean_metrics(metrics: Mapping[str, object], split: str) -> dict[str, float]:
    """Turn the metrics of a caller into a row: plain finite floats by `{split}/{key}`.

    Scalars of numpy, torch and the standard library and booleans become floats. NaN and infinities are left
    out, counted as `{split}/num_nonfinite`, and warned of once per call.

    Raises:
        TypeError: A key is not a string, or a value is not a scalar.
        OverflowError: An integer is too large for a float.
    """
    row: dict[str, float] = {}
    nonfinite: list[str] = []
    for key, value in metrics.items():
        if not isinstance(key, str):
            raise TypeError(f"metric name {key!r} is a {type(key).__name__}; use a string")
        number = to_float(value, f"metric {key!r}")
        if math.isfinite(number):
            row[f"{split}/{key}"] = number
        else:
            nonfinite.append(key)
    if nonfinite:
        count_key = f"{split}/num_nonfinite"
        row[count_key] = row.get(count_key, 0.0) + len(nonfinite)
        logger.warning("left NaN or infinite %s metrics out of the log: %s", split, nonfinite)
    return row


def parse_row(line: dict[str, Any], offset: int) -> HistoryRow | None:
    """Turn the object on a line into a row, None where it has no step."""
    step = as_step(line.pop("step", None))
    if step is None:
        return None
    policy_step = as_step(line.pop("policy_step", None))
    recorded_at = line.pop("recorded_at", None)
    return HistoryRow(
        step=step,
        policy_step=policy_step,
        recorded_at=recorded_at if isinstance(recorded_at, str) else None,
        # Interned: a long history repeats the same few keys on every row.
        metrics={
            sys.intern(key): number
            for key, value in line.items()
            if (number := as_finite(value)) is not None
        },
        offset=offset,
    )


def as_finite(value: object) -> float | None:
    """Return a JSON value as the number that counts as a metric, None where it is none."""
    if not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
