"""Group-relative advantages: how much better a rollout did than its siblings."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from art.errors import InvalidTrajectoriesError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from art.trajectories import TrajectoryGroup

# Rewards that differ by rounding alone count as equal: the standard deviation of three times 0.1 is 1.4e-17
# in floating point, and dividing by it would turn nothing into a full-size update.
_EQUAL_TOLERANCE = 1e-12

# Added to the standard deviation, so that a tiny spread is not blown up to a full-size update.
_STD_FLOOR = 1e-6


def group_advantages(rewards: Sequence[float], *, scale_by_std: bool = True) -> list[float]:
    """Return the advantage of each rollout of one group over the group's mean.

    GRPO's formula (Shao et al. 2024, https://arxiv.org/abs/2402.03300): `(r - mean) / (std + 1e-6)` with the
    population standard deviation. Without the scaling it is the centred reward of Dr. GRPO (Liu et al. 2025,
    https://arxiv.org/abs/2503.20783). Advantages of a group sum to zero and do not change when a constant is
    added to all rewards.

    Args:
        rewards: One reward for each rollout of the group.
        scale_by_std: Divide by the group's standard deviation.

    Returns:
        One advantage for each reward, in order; exactly 0.0 for all where the rewards are equal.

    Raises:
        InvalidTrajectoriesError: A reward is NaN or infinite.
    """
    for i, reward in enumerate(rewards):
        if not math.isfinite(reward):
            raise InvalidTrajectoriesError(
                f"reward {i} of the group is {reward}; leave rollouts without a finite reward out of the group"
            )
    if _all_equal(rewards):
        return [0.0] * len(rewards)
    count = len(rewards)
    mean = math.fsum(reward / count for reward in rewards)
    deviations = [reward - mean for reward in rewards]
    if not scale_by_std:
        return deviations
    std = math.hypot(*deviations) / math.sqrt(count)
    return [deviation / (std + _STD_FLOOR) for deviation in deviations]


def is_trainable(group: TrajectoryGroup) -> bool:
    """Tell whether a group carries a training signal: at least two finite rewards that are not all equal."""
    rewards = [t.reward for t in group.trajectories if math.isfinite(t.reward)]
    return not _all_equal(rewards)


def _all_equal(rewards: Sequence[float]) -> bool:
    if len(rewards) < 2:
        return True
    low, high = min(rewards), max(rewards)
    return high - low <= _EQUAL_TOLERANCE * max(1.0, abs(low), abs(high))
