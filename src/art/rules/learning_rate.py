"""How the learning rate is scaled: by the trend of the rewards' spread, and by the size of the batch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from art.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

MIN_MULTIPLIER = 0.01
MAX_MULTIPLIER = 10.0
# Of the largest value: a fitted start below this is rounding noise around zero.
_SMALLEST_START = 1e-12
_MAX_BATCH_FACTOR = 1e6


def multiplier(points: Mapping[int, float]) -> float:
    """Return the factor for the learning rate from the trend of the rewards' standard deviation.

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
    start = mean_value - slope * mean_time
    if start <= _SMALLEST_START:
        return 1.0
    return _clamp((start + slope) / start, MIN_MULTIPLIER, MAX_MULTIPLIER)


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
