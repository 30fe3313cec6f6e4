"""Mean and standard deviation that are exact where it matters, without numpy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def mean(values: Sequence[float]) -> float:
    """Return the mean of finite values; of equal values it is that value, and it never overflows."""
    return _moments(values)[0]


def population_std(values: Sequence[float]) -> float:
    """Return the population standard deviation of finite values, exactly 0.0 for equal ones.

    numpy gives 1.4e-17 for three times 0.1, which makes "is there any spread" come out wrong.
    """
    return _moments(values)[1]


def _moments(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    if low == high:
        return low, 0.0
    # Scaling by a power of two is exact, and keeps sums and squares in range.
    exponent = math.frexp(max(-low, high))[1]
    scaled = [math.ldexp(value, -exponent) for value in values]
    center = math.fsum(scaled) / len(scaled)
    variance = math.fsum((value - center) ** 2 for value in scaled) / len(scaled)
    return math.ldexp(center, exponent), math.ldexp(math.sqrt(variance), exponent)


def merge_means(mean: float, weight: float, value: float, value_weight: float) -> float:
    """Return the weighted mean of a mean and one more value, both finite; it lies between them."""
    # In this form the mean of equal values is that value to the last bit: ties stay ties.
    share = value_weight / (weight + value_weight)
    change = (value - mean) * share
    return mean + change if math.isfinite(change) else mean * (1 - share) + value * share


@dataclass(frozen=True, slots=True)
class ExactSum:
    """A sum of finite floats without rounding, so that neither order nor grouping leaves a trace in it.

    It is held as the few floats that add up to it: the sum rounded, what is left of it rounded, and so on.
    """

    _parts: tuple[float, ...] = ()

    def plus(self, values: Iterable[float]) -> ExactSum:
        """Return the sum with more values in it."""
        rest = [*self._parts, *values]
        parts = []
        while part := math.fsum(rest):
            parts.append(part)
            rest.append(-part)
        return ExactSum(tuple(parts))

    def __float__(self) -> float:
        """Return the sum, rounded once."""
        return math.fsum(self._parts)
