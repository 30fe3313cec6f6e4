"""What users pass to `log` and `train`, brought into one form: a list of groups."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping
from typing import Any

from art.errors import InvalidTrajectoriesError
from art.trajectories import PydanticException, Trajectory, TrajectoryGroup


def as_groups(items: TrajectoryGroup | Trajectory | Iterable[Any]) -> list[TrajectoryGroup]:
    """Bring groups, or a flat run of trajectories and exceptions, into a list of groups.

    An iterator is consumed once. A flat run is one group, and so is a single trajectory.

    Raises:
        InvalidTrajectoriesError: Groups and trajectories are mixed, or something else is among them.
    """
    if isinstance(items, (Trajectory, TrajectoryGroup)):
        items = [items]
    elif isinstance(items, (str, Mapping)) or not isinstance(items, Iterable):
        raise InvalidTrajectoriesError(_unexpected("what was passed", items))
    given = list(items)
    groups = [item for item in given if isinstance(item, TrajectoryGroup)]
    if len(groups) == len(given):
        return groups
    for i, item in enumerate(given):
        if not isinstance(item, (Trajectory, TrajectoryGroup, BaseException, PydanticException)):
            raise InvalidTrajectoriesError(_unexpected(f"item {i}", item))
    if groups:
        first = next(i for i, item in enumerate(given) if not isinstance(item, TrajectoryGroup))
        raise InvalidTrajectoriesError(
            f"item {first} is a {type(given[first]).__name__} but other items are groups; pass a list of "
            "TrajectoryGroup, or a flat list of trajectories and exceptions (taken as one group), not both"
        )
    return [TrajectoryGroup(given)]


def check_rewards(groups: list[TrajectoryGroup]) -> None:
    """Check that every reward is a number, NaN and infinity included.

    Raises:
        InvalidTrajectoriesError: One is not; the message names group and trajectory.
    """
    for i, group in enumerate(groups):
        for j, trajectory in enumerate(group):
            try:
                math.isfinite(trajectory.reward)
            except (TypeError, ValueError, OverflowError):
                raise InvalidTrajectoriesError(
                    f"group {i}, trajectory {j}: reward is {trajectory.reward!r}, not a number; "
                    "a rollout that could not be scored should raise, so that it counts as an exception"
                ) from None


def _unexpected(where: str, item: object) -> str:
    what = f"{where} is a {type(item).__name__}"
    if inspect.isawaitable(item):
        return f"{what}, which was not awaited; pass `await art.gather_trajectory_groups(...)`"
    if isinstance(item, Mapping):
        return f"{what}; numbers of your own go to `model.log(metrics={{...}})`"
    return f"{what}; expected a TrajectoryGroup, or trajectories and exceptions"


def with_finite_rewards(groups: list[TrajectoryGroup]) -> list[TrajectoryGroup]:
    """Return the groups with every trajectory of non-finite reward left out; whole groups are kept as they are."""
    return [group if _all_finite(group) else _finite_part(group) for group in groups]


def _all_finite(group: TrajectoryGroup) -> bool:
    return all(math.isfinite(trajectory.reward) for trajectory in group)


def _finite_part(group: TrajectoryGroup) -> TrajectoryGroup:
    return TrajectoryGroup(
        [trajectory for trajectory in group if math.isfinite(trajectory.reward)],
        exceptions=group.exceptions,
        metadata=group.metadata,
        metrics=group.metrics,
        logs=group.logs,
    )


def policy_step_of(groups: list[TrajectoryGroup]) -> int | None:
    """Return the step of the policy that made these groups, if `backend.train` trained on all of them."""
    steps = {group._policy_step for group in groups}
    return steps.pop() if len(steps) == 1 else None
