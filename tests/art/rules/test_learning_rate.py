from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from art.errors import ConfigurationError
from art.rules import learning_rate
from art.rules.learning_rate import (
    MAX_MULTIPLIER,
    MIN_MULTIPLIER,
    Trend,
    multiplier,
    num_trajectories_multiplier,
)

steps = st.integers(0, 10_000)
spreads = st.floats(0.0, 100.0)


@pytest.mark.parametrize("points", [{}, {0: 0.5}, {7: 0.0}, {3: math.nan, 5: 1.0}])
def test_c056_fewer_than_two_points_change_nothing(points: dict[int, float]) -> None:
    """With no trend to see the multiplier is exactly 1."""
    assert multiplier(points) == 1.0


def test_c057_no_spread_at_all_changes_nothing() -> None:
    """Standard deviations that are all zero give 1, not 0/0."""
    assert multiplier({0: 0.0, 1: 0.0, 2: 0.0}) == 1.0


def test_a_falling_spread_lowers_the_rate() -> None:
    """A spread that halves on a straight line halves the multiplier."""
    assert multiplier({0: 0.4, 1: 0.3, 2: 0.2}) == pytest.approx(0.5)


def test_a_run_that_starts_late_is_measured_from_its_own_start() -> None:
    """The first observed step is the anchor, not an extrapolation to step 0."""
    assert multiplier({100: 0.40, 101: 0.39, 102: 0.37, 103: 0.36}) == pytest.approx(
        0.896, abs=0.01
    )


def test_the_multiplier_is_never_negative() -> None:
    """A line that falls below zero, where upstream's formula turns the gradient round, stops at the bound."""
    assert multiplier({0: 0.4, 1: 0.2, 2: 0.05, 3: 0.0}) == MIN_MULTIPLIER


def test_a_start_near_zero_does_not_explode() -> None:
    """A tiny start stops at the upper bound, and a start of zero up to rounding changes nothing."""
    assert multiplier({0: 0.001, 1: 0.3, 2: 0.7}) in {MAX_MULTIPLIER, 1.0}
    assert multiplier({0: 0.01, 1: 0.4, 2: 0.79}) == MAX_MULTIPLIER
    assert multiplier({step: step * 0.7 for step in range(10)}) == 1.0


@given(st.dictionaries(st.integers(-(10**30), 10**30), st.floats()))
def test_always_finite_and_within_bounds(points: dict[int, float]) -> None:
    """Whatever the points, the multiplier can be applied."""
    assert MIN_MULTIPLIER <= multiplier(points) <= MAX_MULTIPLIER


@given(st.dictionaries(steps, spreads, min_size=2, max_size=20), st.integers(0, 10_000))
def test_only_differences_of_steps_matter(points: dict[int, float], shift: int) -> None:
    """A run resumed under higher step numbers has the same multiplier."""
    assert multiplier({step + shift: value for step, value in points.items()}) == multiplier(points)


@given(st.dictionaries(steps, spreads, min_size=2, max_size=20), st.integers(-30, 30))
def test_only_ratios_of_spreads_matter(points: dict[int, float], exponent: int) -> None:
    """Rewards in other units have the same multiplier."""
    assume(all(value == 0.0 or value > 1e-200 for value in points.values()))
    scaled = {step: math.ldexp(value, exponent) for step, value in points.items()}
    assert multiplier(scaled) == multiplier(points)


@given(steps, spreads, st.integers(1, 20))
def test_a_constant_spread_changes_nothing(first: int, value: float, count: int) -> None:
    """A level trend is exactly 1."""
    assert multiplier({first + i: value for i in range(count)}) == 1.0


@given(
    st.dictionaries(st.integers(1, 500), st.floats(0.01, 10.0), min_size=1, max_size=20), spreads
)
def test_agrees_with_upstreams_formula_from_step_zero(
    points: dict[int, float], first: float
) -> None:
    """Where the run starts at step 0, the multiplier is upstream's (a * last + b) / b within the bounds."""
    points = {0: first, **points}
    slope, start = np.polyfit(list(points), list(points.values()), 1)
    assume(start > 1e-3)
    expected = (slope * max(points) + start) / start
    assert multiplier(points) == pytest.approx(
        min(max(expected, MIN_MULTIPLIER), MAX_MULTIPLIER), rel=1e-6, abs=1e-6
    )


def trend(points: dict[int, float]) -> Trend:
    ascending = dict(sorted(points.items()))
    return Trend.of(list(ascending), list(ascending.values()))


# Below the normal range floats lose digits, and both ways of computing are noise.
@given(
    st.dictionaries(steps, st.floats(0.0, 100.0, allow_subnormal=False), min_size=1, max_size=20)
)
def test_a_trend_comes_to_the_same_as_the_rule(points: dict[int, float]) -> None:
    """The sums of the trend give the multiplier of the points, unless the start is rounding noise."""
    mean = sum(points.values()) / len(points)
    start = mean
    if len(points) > 1:
        first = min(points)
        _, start = np.polyfit([s - first for s in points], list(points.values()), 1)
    assume(mean == 0.0 or (mean > 1e-290 and abs(start) > 1e-6 * mean))
    assert trend(points).multiplier() == pytest.approx(multiplier(points), rel=1e-6)


@given(
    st.dictionaries(st.integers(-(2**62), 2**62), st.floats(-1e308, 1e308), min_size=1),
    st.data(),
)
def test_a_trend_has_no_memory(points: dict[int, float], data: st.DataObject) -> None:
    """However its points came and changed, a trend is the one of its points, to the last bit, and in bounds."""
    ascending = sorted(points)
    whole = trend(points)
    assert MIN_MULTIPLIER <= whole.multiplier() <= MAX_MULTIPLIER
    old = {step: data.draw(st.floats(-1e308, 1e308)) for step in ascending[1:]}
    grown = trend({ascending[0]: points[ascending[0]]})
    for step in data.draw(st.permutations(ascending[1:])):
        grown = grown.plus([step], [old[step]])
    for step in data.draw(st.permutations(ascending[1:])):
        grown = grown.replace(step, old[step], points[step])
    assert grown.multiplier() == whole.multiplier()
    assert (grown.first, grown.last) == (ascending[0], ascending[-1])


@given(steps, spreads, st.integers(1, 20))
def test_a_level_trend_changes_nothing(first: int, value: float, count: int) -> None:
    """A constant spread is exactly 1, also from sums."""
    assert trend({first + i: value for i in range(count)}).multiplier() == 1.0


@pytest.mark.parametrize("value", [0.0, 1e-320, 1e300])
def test_a_trend_takes_values_of_any_size(value: float) -> None:
    """No spread is too small or too large to be fitted."""
    found = trend({0: value, 1: value / 2, 10_000: value / 4}).multiplier()
    assert MIN_MULTIPLIER <= found <= 1.0


@given(
    st.lists(st.floats(-1e308, 1e308) | spreads, min_size=2, max_size=50),
    st.integers(1, 2**64 // 100),
    st.integers(2, 60),
)
def test_many_points_are_summed_to_the_last_bit(values: list[float], gap: int, part: int) -> None:
    """As columns the points come to what they come to one by one, however small, large and far apart."""
    points = {-(2**63) + gap * i: value for i, value in enumerate(values)}
    one_by_one = trend(points)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learning_rate, "_MANY_POINTS", 2)
        patch.setattr(learning_rate, "_POINTS_AT_A_TIME", part)
        assert trend(points) == one_by_one


def test_a_long_trend_is_summed_in_parts() -> None:
    """More points than are taken at a time come to the same as the rule."""
    points = {step: 0.4 - 1e-6 * step + 0.01 * (step % 7) for step in range(80_000)}
    assert trend(points).multiplier() == pytest.approx(multiplier(points), rel=1e-12)


def test_batch_factor_is_the_power_of_the_number() -> None:
    """The factor is n ** power, 1 where the power is off or the batch empty."""
    assert num_trajectories_multiplier(16, 0.5) == 4.0
    assert num_trajectories_multiplier(16, -0.5) == 0.25
    assert num_trajectories_multiplier(16, 0.0) == 1.0
    assert num_trajectories_multiplier(0, 0.5) == 1.0


@given(st.integers(-5, 10**9), st.floats(allow_nan=False, allow_infinity=False))
def test_batch_factor_is_always_within_bounds(count: int, power: float) -> None:
    """No power makes the learning rate zero or infinite."""
    assert 1e-6 * (1 - 1e-9) <= num_trajectories_multiplier(count, power) <= 1e6 * (1 + 1e-9)


def test_batch_power_that_is_no_number_is_refused() -> None:
    """A NaN power is a mistake in the user's options."""
    with pytest.raises(ConfigurationError, match="num_trajectories_learning_rate_multiplier_power"):
        num_trajectories_multiplier(4, math.nan)
