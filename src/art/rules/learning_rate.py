"""How the learning rate is scaled: by the trend of the rewards' spread, and by the size of the batch."""

from __future__ import annotations

import dataclasses
import math
import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from art.errors import ConfigurationError
from art.rules.statistics import ExactSum

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import polars as pl

MIN_MULTIPLIER = 0.01
MAX_MULTIPLIER = 10.0
# Of the mean value: a fitted start below this is rounding noise around zero.
_SMALLEST_START = 1e-12
# Sums of values times steps stay in range; the factor does not depend on the unit of the values.
_HEADROOM = 2.0**-200
_POINTS_AT_A_TIME = 1 << 16  # bounds the memory for the products
_MANY_POINTS = 1 << 12  # from here on polars is worth its import
_MAX_BATCH_FACTOR = 1e6


def multiplier(points: Mapping[int, float]) -> float:
    """Return the factor for the learning rate from the trend of the rewards' standard deviation.

    The rule as it reads; `Trend` comes to the same without going through all points at every step.

    As the policy converges, the rewards of a group spread less and so do the advantages; their normalisation
    would amplify noise, and the factor takes that back. A straight line s(t) = a t + b is fitted by ordinary
    least squares, and the factor is s(last step) / s(first step). Upstream divides by b, which is the same
    where the first step is 0; anchored at the first observed step, a run that starts at step 100 is not
    measured against an extrapolation.

    Args:
        points: Policy step -> `reward_std_dev`, the batch in hand included; values that are not finite do not
            count.

    Returns:
        1.0 with fewer than two steps or a fitted start that is not positive; else within
        [MIN_MULTIPLIER, MAX_MULTIPLIER].
    """
    steps = sorted(step for step, value in points.items() if math.isfinite(value))
    if len(steps) < 2:
        return 1.0
    scale = max(abs(points[step]) for step in steps)
    if scale == 0.0:
        return 1.0
    # The factor does not depend on the units of either axis, so both are brought to [0, 1].
    span = steps[-1] - steps[0]
    times = [(step - steps[0]) / span for step in steps]
    values = [points[step] / scale for step in steps]
    mean_time = math.fsum(times) / len(times)
    mean_value = math.fsum(values) / len(values)
    covariance = math.fsum(
        (time - mean_time) * (value - mean_value) for time, value in zip(times, values, strict=True)
    )
    slope = covariance / math.fsum((time - mean_time) ** 2 for time in times)
    return _factor(mean_value - slope * mean_time, slope, mean_value)


def _factor(start: float, rise: float, mean_value: float) -> float:
    if start <= _SMALLEST_START * abs(mean_value):
        return 1.0
    return _clamp((start + rise) / start, MIN_MULTIPLIER, MAX_MULTIPLIER)


@dataclass(frozen=True, slots=True)
class Trend:
    """The line of `multiplier`, for many points: one more costs the same however many there are.

    All sums are exact, so two trends of the same points agree to the last bit, whichever way they came about.
    Steps are counted from the first one, and values from that of the first one: a level trend is exactly 1.
    The first point stays as it is; the others can change.

    Attributes:
        first: The lowest step.
        last: The highest step.
    """

    first: int
    last: int
    _level: float  # the value at the first step, scaled like all values
    _count: int = 0
    _times: int = 0  # sum of the steps since the first
    _squares: int = 0  # sum of their squares
    _rises: ExactSum = field(default_factory=ExactSum)  # sum of the values above the level
    _products: ExactSum = field(default_factory=ExactSum)  # sum of these times the steps

    @classmethod
    def of(cls, steps: Sequence[int], values: Sequence[float]) -> Trend:
        """Return the trend of one point or more, by ascending steps; values are finite."""
        trend = cls(steps[0], steps[0], values[0] * _HEADROOM)
        for i in range(0, len(steps), _POINTS_AT_A_TIME):
            trend = trend.plus(steps[i : i + _POINTS_AT_A_TIME], values[i : i + _POINTS_AT_A_TIME])
        return trend

    def plus(self, steps: Sequence[int], values: Sequence[float]) -> Trend:
        """Return the trend with more points in it, by ascending steps above the first."""
        # Sums of whole numbers must fit into a column.
        is_long = len(steps) >= _MANY_POINTS
        if is_long and (steps[-1] - self.first) ** 2 * len(steps) < 2**63:
            sums = _sums_of_many(steps, values, self.first, self._level)
        else:
            sums = _sums(steps, values, self.first, self._level)
        return Trend(
            self.first,
            max(self.last, steps[-1]),
            self._level,
            self._count + len(steps),
            self._times + sums.times,
            self._squares + sums.squares,
            self._rises.plus(sums.rises),
            self._products.plus(sums.products),
        )

    def replace(self, step: int, old: float, new: float) -> Trend:
        """Return the trend with another value at a step above the first."""
        time = step - self.first
        fallen, risen = (value * _HEADROOM - self._level for value in (old, new))
        return dataclasses.replace(
            self,
            _rises=self._rises.plus([-fallen, risen]),
            _products=self._products.plus([-(time * fallen), time * risen]),
        )

    def multiplier(self) -> float:
        """Return what `multiplier` returns for the points, up to rounding."""
        if self._count < 2:
            return 1.0
        rises = float(self._rises)
        mean_time = self._times / self._count
        covariance = float(self._products) - mean_time * rises
        variance = (self._count * self._squares - self._times**2) / self._count
        slope = covariance / variance
        mean_value = self._level + rises / self._count
        start = mean_value - slope * mean_time
        return _factor(start, slope * (self.last - self.first), mean_value)


class _Sums(NamedTuple):
    """What points add to a `Trend`; `rises` and `products` are any floats that have the exact sum."""

    times: int
    squares: int
    rises: Iterable[float]
    products: Iterable[float]


def _sums(steps: Sequence[int], values: Sequence[float], first: int, level: float) -> _Sums:
    times = [step - first for step in steps]
    rises = [value * _HEADROOM - level for value in values]
    squares = sum(map(operator.mul, times, times))
    return _Sums(sum(times), squares, rises, map(operator.mul, times, rises))


def _sums_of_many(steps: Sequence[int], values: Sequence[float], first: int, level: float) -> _Sums:
    """Return what `_sums` comes to, ten times as fast."""
    import polars as pl

    times = pl.Series(steps, dtype=pl.Int64) - first
    rises = pl.Series(values, dtype=pl.Float64) * _HEADROOM - level
    squares = int((times * times).sum())
    return _Sums(
        int(times.sum()), squares, _few_of_same_sum(rises), _few_of_same_sum(times * rises)
    )


def _few_of_same_sum(values: pl.Series) -> list[float]:
    """Return a few floats with the exact sum of many.

    Adding and subtracting a large power of two cuts all values at the same digit. What is above it has so few
    digits that no sum of it is rounded; what is below it goes the same way.
    """
    sums: list[float] = []
    while largest := float(values.abs().max()):  # type: ignore[arg-type]  # there is one
        cut = math.ldexp(1.0, math.frexp(largest)[1] + len(values).bit_length() + 1)
        high = (values + cut) - cut
        sums.append(float(high.sum()))
        values = values - high
    return sums


def num_trajectories_multiplier(num_trajectories: int, power: float) -> float:
    """Return `num_trajectories ** power`, the factor for the size of the batch.

    Upstream applies it per gradient step to the trajectories in that step.

    Returns:
        1.0 for an empty batch; always within [1e-6, 1e6].

    Raises:
        ConfigurationError: The power is not finite.
    """
    if not math.isfinite(power):
        raise ConfigurationError(
            f"num_trajectories_learning_rate_multiplier_power is {power}; use a finite number (0.0 is off)"
        )
    if num_trajectories < 1:
        return 1.0
    limit = math.log(_MAX_BATCH_FACTOR)
    # Compared in the logarithm: the power itself can overflow.
    if abs(power * math.log(num_trajectories)) >= limit:
        return _MAX_BATCH_FACTOR if power > 0 else 1 / _MAX_BATCH_FACTOR
    return float(num_trajectories**power)


def _clamp(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)
