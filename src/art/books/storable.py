"""What of a batch can be stored, where not all of it can: one bad value must not cost the other rollouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ParamSpec

from art.books.trajectory_encoder import check_row
from art.books.trajectory_rows import NOTHING_WRITTEN, shared_row, trajectory_row
from art.errors import InvalidTrajectoriesError
from art.rules.scalars import to_float
from art.trajectories import TrajectoryGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from art.trajectories import Trajectory

P = ParamSpec("P")


def storable(groups: Sequence[TrajectoryGroup]) -> tuple[list[TrajectoryGroup], list[str]]:
    """Return the groups without what cannot be stored or averaged, and what was wrong with each part left out.

    A trajectory with a bad value is left out; of a group with one, its metadata, metrics or logs.
    """
    kept: list[TrajectoryGroup] = []
    problems: list[str] = []
    for i, group in enumerate(groups):
        name = f"group {i}"
        fields = {}
        for field in ("metadata", "metrics", "logs"):
            value = getattr(group, field)
            problem = _problem(_check_group, _empty_group(**{field: value}), name)
            if problem is None:
                fields[field] = value
            else:
                problems.append(problem)
        trajectories = []
        for j, trajectory in enumerate(group.trajectories):
            problem = _problem(_check_trajectory, trajectory, name, j)
            if problem is None:
                trajectories.append(trajectory)
            else:
                problems.append(problem)
        if trajectories or group.exceptions or not group.trajectories:
            kept.append(TrajectoryGroup(trajectories, exceptions=group.exceptions, **fields))
    return kept, problems


def _problem(check: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> str | None:
    try:
        check(*args, **kwargs)
    except (InvalidTrajectoriesError, TypeError, OverflowError) as error:
        return str(error).removesuffix(NOTHING_WRITTEN)
    return None


def _check_group(group: TrajectoryGroup, name: str) -> None:
    shared_row(group, 0, name)
    _check_numbers(group.metrics, name)


def _check_trajectory(trajectory: Trajectory, name: str, j: int) -> None:
    row = trajectory_row(shared_row(_empty_group(), 0, name), j, trajectory)
    check_row(row)
    _check_numbers({**(trajectory.auto_metrics or {}), **(trajectory.metrics or {})}, row.name)
    to_float(trajectory.reward, f"{row.name}: reward")


def _check_numbers(metrics: Mapping[str, object], where: str) -> None:
    for key, value in metrics.items():
        to_float(value, f"{where}: metrics[{key!r}]")


def _empty_group(**fields: Any) -> TrajectoryGroup:
    nothing: dict[str, Any] = {"metadata": {}, "metrics": {}, "logs": []}
    # Not validated: what is wrong with the fields is to be found out here.
    return TrajectoryGroup.model_construct(trajectories=[], exceptions=[], **{**nothing, **fields})
