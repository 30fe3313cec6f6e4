from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from art.rules.statistics import ExactSum, mean, merge_means, population_std

if TYPE_CHECKING:
    import random

finite = st.floats(allow_nan=False, allow_infinity=False)


def test_c120_equal_values_have_no_spread() -> None:
    """Three times 0.1 has a standard deviation of exactly 0, and a mean of exactly 0.1."""
    assert population_std([0.1, 0.1, 0.1]) == 0.0
    assert mean([0.1, 0.1, 0.1]) == 0.1


def test_plain_values() -> None:
    """Small sets have the values that one computes by hand."""
    assert mean([1.0, 3.0]) == 2.0
    assert population_std([1.0, 3.0]) == 1.0
    assert mean([7.0]) == 7.0
    assert population_std([7.0]) == 0.0


@given(st.lists(finite, min_size=1, max_size=8))
def test_results_are_finite_and_in_range(values: list[float]) -> None:
    """No values overflow: the mean lies among them, the deviation within half their range."""
    low, high = min(values), max(values)
    assert low <= mean(values) <= high
    assert population_std(values) >= 0.0
    assert population_std(values) <= (high / 2 - low / 2) * (1 + 1e-9) + 5e-324


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8))
def test_agrees_with_numpy(values: list[float]) -> None:
    """On ordinary values the results are numpy's."""
    assert mean(values) == pytest.approx(float(np.mean(values)), rel=1e-12, abs=1e-9)
    assert population_std(values) == pytest.approx(float(np.std(values)), rel=1e-9, abs=1e-9)
    assert math.isfinite(population_std(values))


@given(st.lists(st.floats(-1e300, 1e300), max_size=9), st.integers(0, 9), st.randoms())
def test_an_exact_sum_is_rounded_once(values: list[float], cut: int, rng: random.Random) -> None:
    """The sum is the exact one, rounded, however the values were ordered and grouped."""
    exact = float(sum(map(Fraction, values)))
    assert float(ExactSum().plus(values)) == exact
    rng.shuffle(values)
    assert float(ExactSum().plus(values[:cut]).plus(values[cut:])) == exact


@given(
    st.lists(st.floats(-1e300, 1e300), max_size=6), st.lists(st.floats(-1e300, 1e300), max_size=6)
)
def test_what_is_taken_out_of_an_exact_sum_leaves_no_trace(
    values: list[float], others: list[float]
) -> None:
    """Values that were added and subtracted again might never have been there."""
    passed = ExactSum().plus(others).plus(values).plus([-other for other in others])
    assert float(passed) == float(ExactSum().plus(values))


@given(finite, st.floats(1e-3, 1e6), finite, st.floats(1e-3, 1e6))
def test_merged_means_lie_between(a: float, weight: float, b: float, other: float) -> None:
    """The weighted mean of two values is finite and no further out than they, to the last bit or so."""
    merged = merge_means(a, weight, b, other)
    assert math.isfinite(merged)
    slack = 1e-12 * max(abs(a), abs(b))
    assert min(a, b) - slack <= merged <= max(a, b) + slack
    assert merge_means(a, weight, a, other) == a


def test_merged_means_are_weighted() -> None:
    """A value that stands for three trajectories counts three times."""
    assert merge_means(1.0, 3.0, 0.0, 1.0) == 0.75
