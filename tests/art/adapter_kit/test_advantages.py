from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art.adapter_kit.advantages import group_advantages, is_trainable
from art.errors import InvalidTrajectoriesError
from art.trajectories import Trajectory, TrajectoryGroup

# Multiples of 1/8: exact in floating point, and far enough apart for the floor under the deviation not to matter.
rewards = st.lists(st.integers(-800, 800).map(lambda n: n / 8), min_size=2, max_size=12)


def group(*values: float) -> TrajectoryGroup:
    """A group with these rewards."""
    return TrajectoryGroup([Trajectory(reward=value) for value in values])


@given(rewards, st.booleans())
def test_advantages_of_a_group_sum_to_zero(values: list[float], scale: bool) -> None:
    """No group is pushed up or down as a whole."""
    assert math.fsum(group_advantages(values, scale_by_std=scale)) == pytest.approx(0.0, abs=1e-9)


@given(rewards, st.integers(-1000, 1000), st.booleans())
def test_a_shift_of_all_rewards_changes_nothing(
    values: list[float], shift: int, scale: bool
) -> None:
    """Only differences between siblings count."""
    shifted = group_advantages([v + shift for v in values], scale_by_std=scale)
    assert shifted == pytest.approx(group_advantages(values, scale_by_std=scale), abs=1e-9)


@given(rewards, st.sampled_from([2.0, 16.0, 1024.0]))
def test_scaled_advantages_do_not_depend_on_the_unit_of_the_reward(
    values: list[float], factor: float
) -> None:
    """Dividing by the deviation takes the unit out, up to the floor of 1e-6."""
    scaled = group_advantages([v * factor for v in values])
    assert scaled == pytest.approx(group_advantages(values), rel=1e-4)


@given(st.floats(-1e6, 1e6), st.integers(0, 10), st.booleans())
def test_equal_rewards_give_exactly_zero(value: float, count: int, scale: bool) -> None:
    """A group without a difference has no advantage at all, not a rounded one."""
    assert group_advantages([value] * count, scale_by_std=scale) == [0.0] * count


@pytest.mark.parametrize(
    "values", [[0.1, 0.1, 0.1], [0.1 + 0.2, 0.3, 0.3], [1e6 + 1e-9, 1e6, 1e6], [5.0], []]
)
def test_c120_rewards_that_differ_by_rounding_count_as_equal(values: list[float]) -> None:
    """Rounding noise is neither an advantage nor a signal."""
    assert group_advantages(values) == [0.0] * len(values)
    assert not is_trainable(group(*values))


def test_the_formula_is_upstreams() -> None:
    """Advantages are centred and divided by the population deviation plus 1e-6."""
    assert group_advantages([1.0, 0.0, 0.0, 1.0]) == [
        0.5 / (0.5 + 1e-6) * sign for sign in (1, -1, -1, 1)
    ]
    assert group_advantages([3.0, 0.0, 0.0], scale_by_std=False) == [2.0, -1.0, -1.0]


def test_very_large_rewards_stay_finite() -> None:
    """Neither the mean nor the deviation overflows."""
    assert group_advantages([1e200, -1e200]) == pytest.approx([1.0, -1.0])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_not_finite_is_refused(bad: float) -> None:
    """The error names the reward."""
    with pytest.raises(InvalidTrajectoriesError, match="reward 1 "):
        group_advantages([0.0, bad])


def test_a_group_is_trainable_by_its_finite_rewards() -> None:
    """Two finite rewards that differ are needed; others do not count."""
    assert is_trainable(group(0.0, 1.0))
    assert is_trainable(group(0.0, math.nan, 1.0))
    assert not is_trainable(group(0.0, math.nan))
    assert not is_trainable(group(math.nan, 0.0, 0.0))
    assert not is_trainable(group(math.inf, 0.0))
    assert not is_trainable(group(1.0))
    assert not is_trainable(group())
