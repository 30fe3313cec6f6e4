"""Rollouts that run ahead of training: groups come out in batches, as they finish."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from art.errors import ConfigurationError
from art.gather import discard_group, warn_of_unused, wrap_group_awaitable
from art.gather_context import GatherContext, set_gather_context
from art.tasks import end_tasks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Iterable

    from art.trajectories import TrajectoryGroup


async def trajectory_group_batches(
    groups: Iterable[Awaitable[TrajectoryGroup]],
    *,
    batch_size: int,
    max_batch_exceptions: float = 0,
    max_concurrent_batches: int = 4,
    skip_batches: int = 0,
    pbar_desc: str | None = "batches",
    pbar_total_completion_tokens: bool = False,
) -> AsyncIterator[list[TrajectoryGroup]]:
    """Yield batches of groups in the order in which the groups finish; the last one may be smaller.

    While the consumer works on a batch, the rollouts of up to `max_concurrent_batches` batches go on. When it
    stops early, they are cancelled, and have ended when the iterator is closed.

    Args:
        groups: Awaitables of groups, taken from the iterable only when there is room to run them.
        batch_size: Groups in a batch.
        max_batch_exceptions: How many rollouts may fail between two batches: a count, or a share where
            0 < x < 1. A failed rollout never stops the others of its group.
        max_concurrent_batches: How many batches of groups run at once.
        skip_batches: Batches to leave out at the front, when a run is resumed.
        pbar_desc: Text before the progress bar; each batch has a bar.
        pbar_total_completion_tokens: Has no effect; accepted for older scripts.

    Raises:
        ConfigurationError: A size is not positive.
        BaseException: The first failure since the last batch, if more failed than allowed.
    """
    warn_of_unused(pbar_total_completion_tokens)
    _check_sizes(batch_size, max_concurrent_batches, skip_batches)
    source = iter(groups)
    running = _RunningGroups()
    window = _Window(batch_size, max_batch_exceptions, pbar_desc)
    try:
        for skipped in islice(source, batch_size * skip_batches):
            discard_group(skipped)
        while True:
            room = batch_size * max_concurrent_batches - len(running)
            for awaitable in islice(source, room):
                running.start(awaitable)
            if not running:
                break
            window.show()
            for context, group in await running.next_finished():
                window.add(context, group)
            window.check()
            while len(window.finished) >= batch_size:
                yield window.take_batch()
        window.check(at_end=True)
        if window.finished:
            yield window.take_batch()
    finally:
        window.close()
        await running.end()
        if isinstance(groups, Sequence):  # a generator has not made the rest yet
            for awaitable in source:
                discard_group(awaitable)


def _check_sizes(batch_size: int, max_concurrent_batches: int, skip_batches: int) -> None:
    if batch_size < 1 or max_concurrent_batches < 1 or skip_batches < 0:
        raise ConfigurationError(
            f"batch_size={batch_size}, max_concurrent_batches={max_concurrent_batches}, "
            f"skip_batches={skip_batches}: the first two must be 1 or more, the last one 0 or more"
        )


class _RunningGroups:
    """Groups that run, each in a task and with counts of its own."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[TrajectoryGroup | None], GatherContext] = {}
        self._awaitables: dict[asyncio.Task[Any], Awaitable[TrajectoryGroup]] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, awaitable: Awaitable[TrajectoryGroup]) -> None:
        context = GatherContext(waits_for_all=True)
        task = asyncio.create_task(_run_in(context, awaitable))
        self._tasks[task] = context
        self._awaitables[task] = awaitable

    async def next_finished(self) -> list[tuple[GatherContext, TrajectoryGroup | None]]:
        """Wait until a group has ended; return all that have, in the order of their start."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        finished = []
        for task in [task for task in self._tasks if task in done]:
            finished.append((self._tasks[task], task.result()))
            del self._tasks[task], self._awaitables[task]
        return finished

    async def end(self) -> None:
        await end_tasks(self._tasks)
        for awaitable in self._awaitables.values():
            discard_group(awaitable)


async def _run_in(
    context: GatherContext, awaitable: Awaitable[TrajectoryGroup]
) -> TrajectoryGroup | None:
    # Set inside the task: set in the iterator, the variable would leak into the consumer's code.
    with set_gather_context(context):
        return await wrap_group_awaitable(awaitable)


class _Window:
    """What finished since the last batch."""

    def __init__(self, batch_size: int, max_exceptions: float, pbar_desc: str | None) -> None:
        self.finished: list[TrajectoryGroup] = []
        self._batch_size = batch_size
        self._max_exceptions = max_exceptions
        self._pbar_desc = pbar_desc
        self._open()

    def _open(self) -> None:
        self._num_groups = 0
        self._counts = GatherContext(max_exceptions=self._max_exceptions, increment_pbar=False)

    def show(self) -> None:
        """Open the progress bar, if it is not open."""
        if self._counts.pbar is None:
            from tqdm.auto import tqdm

            self._counts.pbar = tqdm(desc=self._pbar_desc, total=self._batch_size)

    def add(self, context: GatherContext, group: TrajectoryGroup | None) -> None:
        self._num_groups += 1
        self._counts.absorb(context)
        if self._counts.pbar is not None:
            self._counts.pbar.update(1)
        self._counts.update_pbar(0)
        if group is not None:
            self.finished.append(group)

    def check(self, *, at_end: bool = False) -> None:
        """Raise the first failure if too many failed; a share can be told only of a whole batch."""
        is_share = 0 < self._max_exceptions < 1
        if at_end or not is_share or self._num_groups >= self._batch_size:
            self._counts.raise_if_too_many()

    def take_batch(self) -> list[TrajectoryGroup]:
        self.close()
        self._open()
        batch = self.finished[: self._batch_size]
        del self.finished[: self._batch_size]
        return batch

    def close(self) -> None:
        if self._counts.pbar is not None:
            self._counts.pbar.close()
