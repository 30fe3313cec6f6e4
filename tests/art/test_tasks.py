from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING

import pytest

from art.tasks import discard, end_tasks, run_together, was_cancelled

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any


async def value(result: int, event: asyncio.Event | None = None) -> int:
    if event is not None:
        await event.wait()
    return result


async def test_results_stand_in_the_order_of_the_coroutines() -> None:
    """The coroutine that ends last does not change its place."""
    event = asyncio.Event()

    async def open_gate() -> int:
        event.set()
        return 2

    assert await run_together([value(1, event), open_gate()]) == [1, 2]


async def test_nothing_to_run_gives_no_result() -> None:
    """An empty run ends at once."""
    nothing: list[Coroutine[Any, Any, int]] = []
    assert await run_together(nothing) == []


async def test_the_others_have_ended_when_an_exception_is_raised() -> None:
    """A sibling of a coroutine that raises is cancelled, and its cleanup is awaited."""
    cleaned = False

    async def lasting() -> None:
        nonlocal cleaned
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned = True

    async def failing() -> None:
        await asyncio.sleep(0)
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        await run_together([lasting(), failing()])
    assert cleaned


async def test_a_cancellation_ends_all_of_them() -> None:
    """Cancelling the caller cancels every coroutine and returns when their cleanup is done."""
    cleaned: list[int] = []

    async def lasting(i: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(i)

    task = asyncio.create_task(run_together([lasting(0), lasting(1)]))
    await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(cleaned) == [0, 1]


async def test_end_tasks_takes_finished_and_failed_ones() -> None:
    """Tasks that ended, with a result or an exception, do not disturb the end of the others."""

    async def failing() -> int:
        raise ValueError("boom")

    tasks = [
        asyncio.create_task(coroutine)
        for coroutine in (value(1), failing(), value(2, asyncio.Event()))
    ]
    await asyncio.sleep(0.001)
    await end_tasks(tasks)
    assert [task.cancelled() for task in tasks] == [False, False, True]
    await end_tasks([])


async def test_was_cancelled_tells_a_request_from_an_exception() -> None:
    """A CancelledError that code raises by itself is no request to end."""

    async def raising() -> None:
        raise asyncio.CancelledError

    async def observed(event: asyncio.Event) -> bool:
        try:
            await event.wait()
            await raising()
        except asyncio.CancelledError:
            return was_cancelled()
        return False

    event = asyncio.Event()
    event.set()
    assert await asyncio.create_task(observed(event)) is False
    task = asyncio.create_task(observed(asyncio.Event()))
    await asyncio.sleep(0)
    task.cancel()
    assert await task is True


async def test_discard_closes_only_what_was_never_started() -> None:
    """An unstarted coroutine is closed without a warning, a running one is left alone, a task is cancelled."""
    discard(value(1))
    discard("no awaitable")
    started = value(1, asyncio.Event())
    started.send(None)
    discard(started)
    assert inspect.getcoroutinestate(started) == inspect.CORO_SUSPENDED
    started.close()
    task = asyncio.create_task(value(1, asyncio.Event()))
    discard(task)
    with pytest.raises(asyncio.CancelledError):
        await task
