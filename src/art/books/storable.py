"""What of a batch can be stored, where not all of it can: one bad value must not cost the other rollouts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from art.books.trajectory_encoder import NOTHING_WRITTEN, check_row, shared_row, trajectory_row
from art.errors import InvalidTrajectoriesError
from art.trajectories import TrajectoryGroup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from art.books.trajectory_encoder import Row
    from art.trajectories import Trajectory


def storable(groups: Sequence[TrajectoryGroup]) -> tuple[list[TrajectoryGroup], list[str]]:
    """Return the groups without the trajectories that cannot be stored, and what is wrong with each of these.

    A group whose own metadata, metrics or logs cannot be stored is left out whole.
    """
    kept: list[TrajectoryGroup] = []
    problems: list[str] = []
    for i, group in enumerate(groups):
        try:
            shared = shared_row(group, i, f"group {i}")
        except InvalidTrajectoriesError as error:
            problems.append(_text(error))
            continue
        found = [_problem(shared, j, trajectory) for j, trajectory in enumerate(group.trajectories)]
        problems += filter(None, found)
        trajectories = [
            trajectory
            for trajectory, problem in zip(group.trajectories, found, strict=True)
            if problem is None
        ]
        if trajectories or group.exceptions or not group.trajectories:
            kept.append(_with(group, trajectories))
    return kept, problems


def _problem(shared: Row, j: int, trajectory: Trajectory) -> str | None:
    try:
        check_row(trajectory_row(shared, j, trajectory))
    except InvalidTrajectoriesError as error:
        return _text(error)
    return None


def _text(error: InvalidTrajectoriesError) -> str:
    return str(error).removesuffix(NOTHING_WRITTEN)


def _with(group: TrajectoryGroup, trajectories: list[Trajectory]) -> TrajectoryGroup:
    return TrajectoryGroup(
        trajectories,
        exceptions=group.exceptions,
        metadata=group.metadata,
        metrics=group.metrics,
        logs=group.logs,
    )
