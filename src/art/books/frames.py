"""The history as a polars frame. Imported only when a frame is asked for: polars is heavy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
from typing_extensions import override

from art.books.history import parse_row
from art.books.jsonl import JsonLinesReader, LineSink

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from art.books.history import HistoryRow

_FIXED = {"step": pl.Int64, "policy_step": pl.Int64, "recorded_at": pl.String}
_NUMBERS = (pl.Int64, pl.Float64, pl.Boolean)
_ROWS_AT_A_TIME = 4096


def read_history(path: Path) -> pl.DataFrame:
    """Return all readable rows of a history as a frame with a full schema.

    No key is lost because it first appears late, and every metric is a float. A lone surrogate in a name, which
    no column name can hold, stands as its escape.

    Raises:
        LogError: The file is there but the operating system does not let us read it.
    """
    parts = _Parts()
    JsonLinesReader(path, parts).refresh()
    return parts.whole()


def history_frame(rows: Sequence[HistoryRow]) -> pl.DataFrame:
    """Return rows as such a frame."""
    columns: dict[str, pl.Series] = {
        "step": pl.Series("step", [row.step for row in rows], pl.Int64),
        "policy_step": pl.Series("policy_step", [row.policy_step for row in rows], pl.Int64),
        "recorded_at": pl.Series(
            "recorded_at", [_text(row.recorded_at or "") or None for row in rows], pl.String
        ),
    }
    for key in sorted({key for row in rows for key in row.metrics}):
        name = _text(key)
        columns[name] = pl.Series(name, [row.metrics.get(key) for row in rows], pl.Float64)
    return pl.DataFrame(columns)


def _text(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


class _Parts(LineSink):
    """Collects a history as frames."""

    @property
    def columns(self) -> Mapping[str, type]:
        return {"step": int}  # and whatever else is there

    def start_over(self) -> None:
        self._frames: list[pl.DataFrame] = []
        self._rows: list[HistoryRow] = []  # not in a frame yet

    def add_line(self, line: dict[str, Any], offset: int) -> bool:
        row = parse_row(line, offset)
        if row is None:
            return False
        self._rows.append(row)
        if len(self._rows) >= _ROWS_AT_A_TIME:
            self._flush()
        return True

    def frame(self, data: bytes) -> pl.DataFrame | None:
        return _wide_frame(data)

    @override
    def add_frame(self, frame: pl.DataFrame, start: int, stop: int) -> int:
        self._flush()
        rows = frame.filter(pl.col("step").is_not_null())
        self._frames.append(rows)
        return frame.height - rows.height

    def _flush(self) -> None:
        self._frames.append(history_frame(self._rows))
        self._rows = []

    def whole(self) -> pl.DataFrame:
        self._flush()
        frame = pl.concat(self._frames, how="diagonal", rechunk=True)
        metrics = sorted(
            name for name in frame.columns if name not in _FIXED and frame[name].count() > 0
        )
        return frame.select(*_FIXED, *metrics)


def _wide_frame(data: bytes) -> pl.DataFrame | None:
    """Return JSON lines as a frame of all their keys, or None unless that is what the line reader would make."""
    if b"\\u" in data:  # it may be a lone surrogate
        return None
    try:
        frame = pl.read_ndjson(data, infer_schema_length=None)
    except pl.exceptions.PolarsError:
        return None
    kinds = {name: kind for name, kind in frame.schema.items() if kind != pl.Null}
    if any(
        kind != _FIXED[name] if name in _FIXED else kind not in _NUMBERS
        for name, kind in kinds.items()
    ):
        return None
    missing = [pl.lit(None, kind).alias(name) for name, kind in _FIXED.items() if name not in kinds]
    return frame.with_columns(missing).select(
        pl.col(name).cast(_FIXED.get(name, pl.Float64)) for name in {**_FIXED, **kinds}
    )
