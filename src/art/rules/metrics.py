"""What the numbers of a step are: aggregates over trajectory groups, and over a backend's stream."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

from art.rules.scalars import to_float
from art.rules.statistics import mean, population_std

if TYPE_CHECKING:
    from collections.abc import Sequence

    from art.trajectories import Trajectory, TrajectoryGroup

# Names that a backend's stream may not use (clause T3): they are the frontend's. The learning rate follows
# `reward_std_dev`, so a backend that reported its own would bend it.
RESERVED_NAMES = frozenset(
    {
        "step",
        "policy_step",
        "reward",
        "reward_std_dev",
        "recorded_at",
        "training_step",
        "learning_rate",
    }
)
_AGGREGATE_NAMES = frozenset(
    {
        "reward",
        "exception_rate",
        "reward_std_dev",
        "num_trajectories",
        "num_groups_scored",
        "num_nonfinite",
    }
)
# The expected total of gradient steps: for progress bars only.
_PROGRESS_NAME = "num_gradient_steps"


def aggregate(groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """Aggregate one batch of groups into metrics, by name without a split.

    - `reward`: mean over all trajectories, pooled; absent if no reward is finite
    - `exception_rate`: exceptions / (exceptions + trajectories)
    - `reward_std_dev`: mean over the scored groups of the population standard deviation; 0.0 if there is none
    - `num_trajectories`; `num_groups_scored`: groups with at least two finite rewards
    - each trajectory metric: mean over the trajectories that have it (`metrics` win over `auto_metrics`)
    - `group_metric_{name}`: mean over the groups that have it
    - `num_nonfinite`: values left out of these means because they are NaN or infinite, if there are any

    A trajectory metric with one of these names gives way to it.

    Raises:
        TypeError: A reward or metric is not a scalar; names the trajectory.
    """
    rewards: list[float] = []
    group_stds: list[float] = []
    values: defaultdict[str, list[float]] = defaultdict(list)
    group_values: defaultdict[str, list[float]] = defaultdict(list)
    num_exceptions = num_trajectories = num_nonfinite = 0
    for i, group in enumerate(groups):
        num_exceptions += len(group.exceptions)
        num_trajectories += len(group.trajectories)
        group_rewards = [
            reward
            if type(reward := trajectory.reward) is float
            else to_float(reward, f"the reward of group {i}, trajectory {j}")
            for j, trajectory in enumerate(group.trajectories)
        ]
        finite = [reward for reward in group_rewards if math.isfinite(reward)]
        num_nonfinite += len(group_rewards) - len(finite)
        rewards += finite
        if len(finite) >= 2:
            group_stds.append(population_std(finite))
        for j, trajectory in enumerate(group.trajectories):
            metrics = _metrics_of(trajectory)
            num_nonfinite += _collect(metrics, values, f"group {i}, trajectory {j}")
        num_nonfinite += _collect(group.metrics, group_values, f"group {i}")

    result: dict[str, float] = {}
    if rewards:
        result["reward"] = mean(rewards)
    result["exception_rate"] = num_exceptions / max(1, num_exceptions + num_trajectories)
    result["reward_std_dev"] = mean(group_stds) if group_stds else 0.0
    result["num_trajectories"] = float(num_trajectories)
    result["num_groups_scored"] = float(len(group_stds))
    if num_nonfinite:
        result["num_nonfinite"] = float(num_nonfinite)
    result |= {f"group_metric_{name}": mean(numbers) for name, numbers in group_values.items()}
    for name, numbers in values.items():
        if name not in _AGGREGATE_NAMES:
            result.setdefault(name, mean(numbers))
    return result


def _metrics_of(trajectory: Trajectory) -> dict[str, float | int | bool]:
    return {**(trajectory.auto_metrics or {}), **(trajectory.metrics or {})}


def _collect(
    metrics: Mapping[str, object], values: defaultdict[str, list[float]], where: str
) -> int:
    """Add the finite values by name, and return how many were not finite."""
    num_nonfinite = 0
    for name, value in metrics.items():
        if not isinstance(name, str):
            raise TypeError(
                f"metric name {name!r} of {where} is a {type(name).__name__}, not a str"
            )
        # Of what can be no error its message, which takes longer than all else, need not be put together.
        if type(value) is float:
            number = value
        elif value is True or value is False:
            number = float(value)
        else:
            number = to_float(value, f"metric {name!r} of {where}")
        if math.isfinite(number):
            values[name].append(number)
        else:
            num_nonfinite += 1
    return num_nonfinite


def reduce_stream(events: Sequence[object]) -> tuple[dict[str, float], list[str]]:
    """Reduce a backend's events to one row (clause T3), leaving out what a backend may not send.

    Names `num_*` are summed, others averaged over the events that have them; `num_gradient_steps` is dropped.

    Returns:
        The metrics by name, and one sentence for each kind of thing that was left out.
    """
    values: defaultdict[str, list[float]] = defaultdict(list)
    problems: dict[str, None] = {}  # a set that keeps its order
    for event in events:
        if not isinstance(event, Mapping):
            problems[f"an event is a {type(event).__name__}, not a dict"] = None
            continue
        for name, value in event.items():
            if name == _PROGRESS_NAME:
                continue
            number, problem = _read_event_value(name, value)
            if problem is not None:
                problems[problem] = None
            elif number is not None:
                values[name].append(number)
    result: dict[str, float] = {}
    for name, numbers in values.items():
        total = sum(numbers) if name.startswith("num_") else mean(numbers)
        if math.isfinite(total):
            result[name] = total
        else:
            problems[f"{name!r} sums to infinity"] = None
    return result, list(problems)


def _read_event_value(name: object, value: object) -> tuple[float | None, str | None]:
    """Return the number, or what is wrong with it."""
    if not isinstance(name, str):
        return None, f"the name {name!r} is a {type(name).__name__}, not a string"
    if name in RESERVED_NAMES:
        return None, f"the name {name!r} is the frontend's"
    if "/" in name:
        return None, f"the name {name!r} has a prefix; plain names only"
    try:
        number = to_float(value, repr(name))
    except Exception as error:  # noqa: BLE001 - whatever a stranger's number raises, a finished train is not lost
        return None, str(error)
    if not math.isfinite(number):
        return None, f"{name!r} is NaN or infinite"
    return number, None
