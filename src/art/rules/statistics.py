"""Mean and standard deviation that are exact where it matters, without numpy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


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
