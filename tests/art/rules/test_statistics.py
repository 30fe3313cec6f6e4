from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from art.rules.statistics import mean, population_std

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
