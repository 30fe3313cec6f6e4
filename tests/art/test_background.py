from __future__ import annotations

import asyncio
import threading

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
