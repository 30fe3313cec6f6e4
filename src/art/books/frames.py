"""History rows as a polars frame. Imported only when a frame is asked for: polars is heavy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from art.books.history import HistoryRow


def history_frame(rows: Sequence[HistoryRow]) -> pl.DataFrame:
    """Return rows as a frame with a full schema: no key is lost because it first appears late."""
    keys = sorted({key for row in rows for key in row.metrics})
    columns: dict[str, pl.Series] = {
        "step": pl.Series("step", [row.step for row in rows], pl.Int64),
        "policy_step": pl.Series("policy_step", [row.policy_step for row in rows], pl.Int64),
        "recorded_at": pl.Series("recorded_at", [row.recorded_at for row in rows], pl.String),
    }
    for key in keys:
        columns[key] = pl.Series(key, [row.metrics.get(key) for row in rows], pl.Float64)
    return pl.DataFrame(columns)
