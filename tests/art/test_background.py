from __future__ import annotations

import asyncio
import threading
import time

import pytest

from art.background import run_blocking


async def test_the_result_and_the_error_come_back() -> None:
    """A blocking function's value is returned and its error raised as it is."""
    assert await run_blocking(sum, [1, 2]) == 3
    with pytest.raises(KeyError):
        await run_blocking({"key": 1}.__getitem__, "missing")


async def test_c097_a_cancelled_write_ends_before_its_caller_goes_on() -> None:
    """Cancellation waits for the thread, so that nothing lands after the caller moved on."""
    started, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def write() -> None:
        started.set()
        may_end.wait(10)
        ended.set()

    task = asyncio.create_task(run_blocking(write))
    while not started.is_set():
        await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.sleep(0.01)
    assert not task.done()
    may_end.set()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


async def test_an_error_behind_a_cancellation_is_not_reported_as_lost() -> None:
    """The cancellation wins over the function's own error, without a complaint of the loop."""
    may_end = threading.Event()

    def fail() -> None:
        may_end.wait(10)
        raise ValueError("late")

    task = asyncio.create_task(run_blocking(fail))
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.sleep(0)
    may_end.set()

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_second_cancellation_does_not_cut_the_wait_short() -> None:
    """However often a caller is cancelled, it goes on only when the write has ended."""
    started, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def write() -> None:
        started.set()
        may_end.wait(10)
        ended.set()

    task = asyncio.create_task(run_blocking(write))
    while not started.is_set():
        await asyncio.sleep(0.001)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0.01)
    assert not task.done()
    may_end.set()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


def test_a_loop_that_shuts_down_waits_for_the_write() -> None:
    """A write in a task that nobody awaits ends before `asyncio.run` does, and so do its caller's next lines."""
    order: list[str] = []

    async def log() -> None:
        try:
            await run_blocking(write)
        finally:
            order.append("caller")

    def write() -> None:
        time.sleep(0.05)
        order.append("write")

    async def main() -> None:
        tasks.add(asyncio.create_task(log()))
        await asyncio.sleep(0.01)

    tasks: set[asyncio.Task[None]] = set()
    asyncio.run(main())
    assert order == ["write", "caller"]
