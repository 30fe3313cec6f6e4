from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

import pytest

import art
from art.errors import ConfigurationError
from art.gather import get_gather_context
from tests.art.factories import trajectory

if TYPE_CHECKING:
    from collections.abc import Iterator


async def rollout(reward: float, gate: asyncio.Event | None = None) -> art.Trajectory:
    if gate is not None:
        await gate.wait()
    return trajectory(reward)


async def failing() -> art.Trajectory:
    raise ValueError("boom")


def group(reward: float, gate: asyncio.Event | None = None) -> art.TrajectoryGroup:
    return art.TrajectoryGroup([rollout(reward, gate), rollout(reward, gate)])


def firsts(batch: list[art.TrajectoryGroup]) -> list[float]:
    return [item.trajectories[0].reward for item in batch]


async def test_batches_have_the_size_asked_for_and_the_rest_comes_last() -> None:
    """Five groups in batches of two give two, two and one."""
    groups = [group(i) for i in range(5)]
    batches = [firsts(batch) async for batch in art.trajectory_group_batches(groups, batch_size=2)]
    assert batches == [[0.0, 1.0], [2.0, 3.0], [4.0]]


async def test_groups_come_as_they_finish() -> None:
    """A slow group does not hold up the batch."""
    gate = asyncio.Event()
    batches = art.trajectory_group_batches([group(0, gate), group(1), group(2)], batch_size=2)
    assert firsts(await anext(batches)) == [1.0, 2.0]
    gate.set()
    assert firsts(await anext(batches)) == [0.0]
    with pytest.raises(StopAsyncIteration):
        await anext(batches)


async def test_skipped_batches_are_left_out_at_the_front() -> None:
    """A resumed run starts where it was, and the skipped rollouts never run."""
    groups = [group(i) for i in range(5)]
    batches = art.trajectory_group_batches(groups, batch_size=2, skip_batches=1)
    assert [firsts(batch) async for batch in batches] == [[2.0, 3.0], [4.0]]


async def test_groups_are_taken_only_when_there_is_room() -> None:
    """A generator is drawn from no further than `max_concurrent_batches` ahead."""
    made: list[int] = []
    gate = asyncio.Event()

    def stream() -> Iterator[art.TrajectoryGroup]:
        for i in range(100):
            made.append(i)
            yield group(i, None if i in {0, 3} else gate)

    batches: Any = art.trajectory_group_batches(stream(), batch_size=1, max_concurrent_batches=3)
    assert firsts(await anext(batches)) == [0.0]
    assert len(made) == 3
    assert firsts(await anext(batches)) == [3.0]
    assert len(made) == 4
    await batches.aclose()
    assert len(made) == 4


async def test_a_cancellation_in_the_first_moment_leaves_no_rollout_un_awaited() -> None:
    """Python has nothing to warn about when groups are given up before they start."""
    batches: Any = art.trajectory_group_batches([group(0), group(1)], batch_size=1)
    task = asyncio.ensure_future(anext(batches))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    del task, batches
    gc.collect()  # where Python would warn


async def test_an_exception_of_the_stream_of_groups_passes() -> None:
    """Groups that were drawn before it, and not started yet, are given up without a warning."""

    def stream() -> Iterator[art.TrajectoryGroup]:
        yield group(0)
        raise LookupError("no more scenarios")

    with pytest.raises(LookupError, match="no more scenarios"):
        await anext(art.trajectory_group_batches(stream(), batch_size=2))
    gc.collect()  # where Python would warn


async def test_nothing_is_left_running_when_the_consumer_stops_early() -> None:
    """Closing the iterator cancels the rollouts and awaits their end; the rest of a list is given up."""
    ended: list[float] = []

    async def lasting(reward: float) -> art.Trajectory:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(reward)
        return trajectory(reward)

    groups = [group(0), art.TrajectoryGroup([lasting(1), lasting(2)]), group(3), group(4)]
    batches: Any = art.trajectory_group_batches(groups, batch_size=1, max_concurrent_batches=2)
    async for batch in batches:
        assert firsts(batch) == [0.0]
        break
    await batches.aclose()
    assert sorted(ended) == [1.0, 2.0]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_failure_beyond_the_limit_is_raised_and_ends_the_others() -> None:
    """The first exception comes with its own type and a note of counts."""
    groups = [art.TrajectoryGroup([failing(), rollout(1)]), group(2, asyncio.Event())]
    with pytest.raises(ValueError, match="boom") as caught:
        async for _ in art.trajectory_group_batches(groups, batch_size=2):
            pass
    assert "1 of 2 rollouts failed" in caught.value.__notes__[0]


async def test_the_limit_holds_for_each_batch_anew() -> None:
    """One failure in each of many batches passes a limit of one."""
    groups = [art.TrajectoryGroup([failing(), rollout(i)]) for i in range(6)]
    batches = art.trajectory_group_batches(
        groups, batch_size=1, max_batch_exceptions=1, max_concurrent_batches=1
    )
    assert [firsts(batch) async for batch in batches] == [[float(i)] for i in range(6)]


async def test_a_share_is_taken_of_a_whole_batch() -> None:
    """A batch whose first group fails wholly passes if its share of failures is allowed."""
    gate = asyncio.Event()
    groups = [
        art.TrajectoryGroup([failing()]),
        art.TrajectoryGroup([rollout(i, gate) for i in range(3)]),
    ]
    batches = art.trajectory_group_batches(groups, batch_size=2, max_batch_exceptions=0.25)
    task = asyncio.ensure_future(anext(batches))
    await asyncio.sleep(0.001)
    assert not task.done()
    gate.set()
    batch = await task
    assert [(len(item), len(item.exceptions)) for item in batch] == [(0, 1), (3, 0)]


async def test_the_consumer_does_not_see_the_context_of_the_batches() -> None:
    """Between two batches, awaiting a group has counts of its own."""
    async for _ in art.trajectory_group_batches([group(0), group(1)], batch_size=1):
        assert get_gather_context() is not get_gather_context()


async def test_impossible_sizes_are_refused() -> None:
    """A batch of no groups is a configuration error."""
    with pytest.raises(ConfigurationError, match="batch_size=0"):
        await anext(art.trajectory_group_batches([], batch_size=0))


async def test_every_bar_shows_the_means_of_its_batch_and_is_closed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each batch has a bar of its own, which ends in a line of its own."""
    async for _ in art.trajectory_group_batches(
        [group(0), group(1)], batch_size=1, max_concurrent_batches=1, pbar_desc="b"
    ):
        pass
    lines = [line.split("\r")[-1] for line in capsys.readouterr().err.split("\n")]
    assert len(lines) == 3
    assert "reward=1]" in lines[1]
    assert all("1/1" in line for line in lines[:2])
