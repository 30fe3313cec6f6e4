"""Run many rollouts at once, with live progress, and keep what failed beside what succeeded."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

from art.gather_context import (
    GatherContext,
    enclosing_group,
    get_gather_context,
    record_metrics,
    set_gather_context,
)
from art.tasks import check_awaitable, discard, run_together
from art.trajectories import PendingTrajectoryGroup, Trajectory, TrajectoryGroup

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    AfterEach: TypeAlias = Callable[
        [TrajectoryGroup], Awaitable[TrajectoryGroup | list[TrajectoryGroup] | None]
    ]

__all__ = [
    "GatherContext",
    "gather_trajectories",
    "gather_trajectory_groups",
    "get_gather_context",
    "record_metrics",
    "set_gather_context",
    "wrap_group_awaitable",
]

logger = logging.getLogger(__name__)


async def gather_trajectory_groups(
    groups: Iterable[Awaitable[TrajectoryGroup]],
    *,
    pbar_desc: str | None = "gather",
    pbar_total_completion_tokens: bool = False,
    max_exceptions: float = 0,
    max_metrics: int | None = None,
    after_each: AfterEach | None = None,
) -> list[TrajectoryGroup]:
    """Run the rollouts of many groups at once and return the groups, in order.

    A rollout that fails never stops the others. Its traceback is logged at once; its exception stays in its
    group. If more failed than allowed, the first exception is raised when all have ended. A cancellation
    stops all rollouts.

    Args:
        groups: `TrajectoryGroup(rollouts)` objects, or coroutines that return a group. A coroutine that raises
            counts as one failed rollout and gives no group.
        pbar_desc: Text before the progress bar.
        pbar_total_completion_tokens: Has no effect; accepted for older scripts.
        max_exceptions: How many rollouts may fail: a count, or a share of all where 0 < x < 1.
        max_metrics: How many running means the bar shows; None shows all.
        after_each: Called with every finished group; may return it, another, a list of groups, or None to
            drop it. An exception of its own is raised when all rollouts have ended.

    Raises:
        InferenceError: A rollout could not reach its model because the inference endpoint is gone. All others
            are stopped at once.
    """
    warn_of_unused(pbar_total_completion_tokens)
    pending = list(groups)
    check_awaitable(pending, "groups", "a TrajectoryGroup")
    context = GatherContext(
        max_exceptions=max_exceptions, max_metrics=max_metrics, waits_for_all=True
    )
    scoring_errors: list[Exception] = []

    async def run(awaitable: Awaitable[TrajectoryGroup]) -> list[TrajectoryGroup]:
        group = await _run_group(context, awaitable)
        if group is None:
            return []
        if after_each is None:
            return [group]
        try:
            return _as_list(await after_each(group))
        except Exception as error:  # raised below: the rollouts of other groups go on meanwhile
            logger.warning("after_each failed", exc_info=error)
            scoring_errors.append(error)
            return []

    results = await _run_all(context, pbar_desc, pending, run, sum(map(_num_rollouts, pending)))
    context.raise_if_too_many(at_end=True)
    if scoring_errors:
        raise scoring_errors[0]
    return [group for result in results for group in result]


@overload
async def gather_trajectories(
    trajectories: Iterable[Awaitable[Trajectory]],
    *,
    pbar_desc: str | None = "gather",
    pbar_total_completion_tokens: bool = False,
    max_exceptions: Literal[0] = 0,
) -> list[Trajectory]: ...


@overload
async def gather_trajectories(
    trajectories: Iterable[Awaitable[Trajectory]],
    *,
    pbar_desc: str | None = "gather",
    pbar_total_completion_tokens: bool = False,
    max_exceptions: float,
) -> list[Trajectory | BaseException]: ...


@overload
async def gather_trajectories(
    trajectories: Iterable[Awaitable[Iterable[Trajectory]]],
    *,
    pbar_desc: str | None = "gather",
    pbar_total_completion_tokens: bool = False,
    max_exceptions: Literal[0] = 0,
) -> list[list[Trajectory]]: ...


@overload
async def gather_trajectories(
    trajectories: Iterable[Awaitable[Iterable[Trajectory]]],
    *,
    pbar_desc: str | None = "gather",
    pbar_total_completion_tokens: bool = False,
    max_exceptions: float,
) -> list[list[Trajectory] | BaseException]: ...


async def gather_trajectories(
    trajectories: Iterable[Awaitable[Any]],
    *,
    pbar_desc: str | None = "gather",
    pbar_total_completion_tokens: bool = False,
    max_exceptions: float = 0,
) -> Sequence[Any]:
    """Run rollouts at once and return their trajectories, in order.

    Failures are handled as in `gather_trajectory_groups`; within the limit, a failed rollout's exception
    stands in the returned list at its place. A rollout may also return several trajectories, which then stand
    there as a list.

    Args:
        trajectories: Awaitables of a trajectory, or of several.
        pbar_desc: Text before the progress bar.
        pbar_total_completion_tokens: Has no effect; accepted for older scripts.
        max_exceptions: How many rollouts may fail: a count, or a share of all where 0 < x < 1.

    Raises:
        InferenceError: As in `gather_trajectory_groups`.
    """
    warn_of_unused(pbar_total_completion_tokens)
    pending = list(trajectories)
    check_awaitable(pending, "trajectories", "a Trajectory")
    context = GatherContext(max_exceptions=max_exceptions, waits_for_all=True)

    def take(result: object) -> Trajectory | list[Trajectory]:
        taken = result if isinstance(result, Trajectory) else _as_trajectories(result)
        for trajectory in [taken] if isinstance(taken, Trajectory) else taken:
            record_metrics(context, trajectory)
        context.update_pbar(1)
        return taken

    results = await _run_all(
        context, pbar_desc, pending, lambda rollout: context.attempt(rollout, take), len(pending)
    )
    context.raise_if_too_many(at_end=True)
    return results


async def wrap_group_awaitable(awaitable: Awaitable[TrajectoryGroup]) -> TrajectoryGroup | None:
    """Run one group in the current gather context; None if it failed as a whole, within the limit.

    Raises:
        BaseException: The first failure, if more rollouts of the context failed than it allows.
    """
    context = get_gather_context()
    context.expect(_num_rollouts(awaitable))
    group = await _run_group(context, awaitable)
    context.raise_if_too_many()
    return group


async def _run_all(
    context: GatherContext,
    pbar_desc: str | None,
    pending: list[Any],
    run: Callable[[Any], Any],
    total: int,
) -> list[Any]:
    """Run everything in the context, with a progress bar that is closed whatever happens."""
    from tqdm.auto import tqdm

    try:
        with tqdm(desc=pbar_desc, total=total) as context.pbar, set_gather_context(context):
            context.total = total
            return await run_together([run(awaitable) for awaitable in pending])
    finally:
        for awaitable in pending:
            discard_group(awaitable)


async def _run_group(
    context: GatherContext, awaitable: Awaitable[TrajectoryGroup]
) -> TrajectoryGroup | None:
    """Run one group whose rollouts were counted into the context's total."""
    if isinstance(awaitable, PendingTrajectoryGroup):
        return await awaitable.run_in(context)
    with enclosing_group(context) as enclosing:
        outcome = await context.attempt(awaitable, _as_group)
    if isinstance(outcome, BaseException):
        return None
    # Until now the coroutine stood for one rollout.
    if enclosing.counted_by_its_rollouts:
        context.expect(-1)
        return outcome
    context.expect(len(outcome) - 1)
    for trajectory in outcome:
        record_metrics(context, trajectory)
    context.update_pbar(len(outcome))
    return outcome


def discard_group(awaitable: object) -> None:
    """Give up a group awaitable that may not have been started."""
    if isinstance(awaitable, PendingTrajectoryGroup):
        awaitable.close()
    else:
        discard(awaitable)


def _num_rollouts(awaitable: object) -> int:
    return awaitable._num_trajectories if isinstance(awaitable, PendingTrajectoryGroup) else 1


def _as_group(result: object) -> TrajectoryGroup:
    if not isinstance(result, TrajectoryGroup):
        raise TypeError(
            f"the group coroutine returned a {type(result).__name__}, not a TrajectoryGroup"
        )
    return result


def _as_list(result: TrajectoryGroup | list[TrajectoryGroup] | None) -> list[TrajectoryGroup]:
    if result is None:
        return []
    return [result] if isinstance(result, TrajectoryGroup) else [_as_group(item) for item in result]


def _as_trajectories(result: Any) -> list[Trajectory]:
    trajectories = list(result)
    for i, item in enumerate(trajectories):
        if not isinstance(item, Trajectory):
            raise TypeError(
                f"item {i} of the rollout's result is a {type(item).__name__}, not a Trajectory"
            )
    return trajectories


def warn_of_unused(pbar_total_completion_tokens: bool) -> None:
    """Tell that an option which older scripts pass does nothing."""
    if pbar_total_completion_tokens:
        logger.warning("pbar_total_completion_tokens has no effect; remove it from the call")
