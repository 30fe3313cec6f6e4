"""Answers what metrics were at each step, from a history of any length, without keeping its rows.

The file is read once; after that a question costs what was appended since the last one.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from art.books.history import as_finite
from art.books.jsonl import JsonLinesReader, LineSink, as_step
from art.books.metric_track import MetricTrack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import polars as pl

    from art.books.ledger import Rewind
    from art.rules.learning_rate import Trend

_RESERVED = frozenset({"step", "policy_step", "recorded_at"})


@dataclass(frozen=True)
class Metric:
    """One key of the history, and how its rows count.

    Attributes:
        key: The full key ("val/reward").
        unless_zero: Rows where this key is 0 are no observation.
    """

    key: str
    unless_zero: str | None = None

    @functools.cached_property
    def weight_keys(self) -> list[str]:
        """Return the `{split}/num_trajectories` that may weigh it. Split and name may hold a slash themselves."""
        parts = self.key.split("/")
        return ["/".join([*parts[:n], "num_trajectories"]) for n in range(len(parts) - 1, 0, -1)]

    @property
    def columns(self) -> set[str]:
        """Return the keys that say how it stands in a row."""
        return {self.key, *self.weight_keys} | ({self.unless_zero} if self.unless_zero else set())

    def observe(self, line: Mapping[str, object]) -> tuple[float, float] | None:
        """Return value and weight of a row, None if it is no observation. A row without a count weighs 1."""
        value = as_finite(line.get(self.key))
        if value is None or (self.unless_zero and line.get(self.unless_zero) == 0):
            return None
        weights = (as_finite(line.get(key)) or 0.0 for key in self.weight_keys)
        return value, next((weight for weight in weights if weight > 0), 1.0)

    def observe_frame(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return credited step, value and weight of the rows of a frame that are observations."""
        import polars as pl

        is_observed = pl.col(self.key).is_not_null()
        if self.unless_zero:
            is_observed &= pl.col(self.unless_zero).ne_missing(0)
        weights = [pl.when(pl.col(key) > 0).then(pl.col(key)) for key in self.weight_keys]
        return frame.filter(is_observed).select(
            pl.coalesce("policy_step", "step").alias("step"),
            pl.col(self.key).alias("value"),
            pl.coalesce(*weights, pl.lit(1.0)).alias("weight"),
        )


# What a train call asks for, and what `delete_checkpoints` does by default: read along in the first pass.
SPREAD = Metric("train/reward_std_dev", unless_zero="train/num_groups_scored")
_FROM_THE_START = (SPREAD, Metric("val/reward"))


class MetricIndex:
    """The metrics of one history by step, over the rows that no later rewind took back.

    Several rows of a step count as their mean, weighted by the `{split}/num_trajectories` of each. A row counts
    for its `policy_step` where it has one. Safe to use from several threads.

    Args:
        path: The history.
        rewinds: Returns all rewinds there are.
    """

    def __init__(self, path: Path, rewinds: Callable[[], Sequence[Rewind]]) -> None:
        self._rewinds = rewinds
        self._tracks = _Tracks(_FROM_THE_START)
        self._reader = JsonLinesReader(path, self._tracks)
        self._lock = threading.Lock()

    def means(self, key: str, steps: Sequence[int] | None = None) -> dict[int, float]:
        """Return the mean of a metric at each of these steps that has it, or at all that have it."""
        with self._track(Metric(key)) as track:
            return track.means(steps)

    def spread(self) -> Trend | None:
        """Return the trend of the rewards' spread, None where it was never observed."""
        with self._track(SPREAD) as track:
            return track.trend()

    def spread_with(self, step: int, value: float, weight: float) -> Trend | None:
        """Return the trend as it will be once a batch of this spread and weight is logged."""
        with self._track(SPREAD) as track:
            return track.trend_with(step, value, weight)

    @contextlib.contextmanager
    def _track(self, metric: Metric) -> Iterator[MetricTrack]:
        """Hold the track of a metric, up to date."""
        with self._lock:
            rewinds = tuple(self._rewinds())
            if rewinds != self._tracks.rewinds or metric not in self._tracks.by_metric:
                self._tracks.rewinds = rewinds
                self._tracks.by_metric[metric] = MetricTrack()
                self._reader.start_over()
            self._reader.refresh()
            yield self._tracks.by_metric[metric]


class _Tracks(LineSink):
    """The tracks that are kept, fed by one reader."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self.by_metric = {metric: MetricTrack() for metric in metrics}
        self.rewinds: tuple[Rewind, ...] = ()

    @property
    def columns(self) -> Mapping[str, type]:
        """The union of what the metrics need."""
        keys = set().union(*(metric.columns for metric in self.by_metric)) - _RESERVED
        return {"step": int, "policy_step": int, **dict.fromkeys(sorted(keys), float)}

    def start_over(self) -> None:
        self.by_metric = {metric: MetricTrack() for metric in self.by_metric}

    def add_line(self, line: dict[str, Any], offset: int) -> bool:
        step = as_step(line.get("step"))
        if step is None:
            return False
        ceiling = self._ceiling(offset)
        if ceiling is None or step <= ceiling:
            policy_step = as_step(line.get("policy_step"))
            credited_step = step if policy_step is None else policy_step
            for metric, track in self.by_metric.items():
                observed = None if metric.key in _RESERVED else metric.observe(line)
                if observed is not None:
                    track.add([credited_step], [observed[0]], [observed[1]])
        return True

    def add_frame(self, frame: pl.DataFrame, start: int, stop: int) -> int | None:
        import polars as pl

        if any(start < rewind.history_offset < stop for rewind in self.rewinds):
            return None
        num_refused = frame["step"].null_count()
        if num_refused:
            frame = frame.filter(pl.col("step").is_not_null())
        ceiling = self._ceiling(start)
        if ceiling is not None:
            frame = frame.filter(pl.col("step") <= ceiling)
        for metric, track in self.by_metric.items():
            if metric.key not in _RESERVED:
                track.add(*map(_as_array, metric.observe_frame(frame)))
        return num_refused

    def _ceiling(self, offset: int) -> int | None:
        """Return the highest step that a row there may have: what was above a later rewind is over."""
        later = (rewind.step for rewind in self.rewinds if offset < rewind.history_offset)
        return min(later, default=None)


def _as_array(column: pl.Series) -> array[Any]:
    """Return a column of 64-bit numbers without nulls, all bytes at once."""
    numbers: array[Any] = array("q" if column.dtype.is_integer() else "d")
    data = column.to_arrow()
    size = numbers.itemsize
    numbers.frombytes(data.buffers()[1][data.offset * size : (data.offset + len(data)) * size])
    return numbers
