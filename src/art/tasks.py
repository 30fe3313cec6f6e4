"""Awaitables run side by side, so that nothing is left running and nothing is left un-awaited."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any, TypeVar

from art.errors import InvalidTrajectoriesError

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine, Iterable, Sequence

T = TypeVar("T")


async def run_together(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines side by side and return their results in order.

    If one raises, or the caller is cancelled, the others are cancelled, and the call returns only when they
    have ended. (`asyncio.gather` leaves them running; a task group wraps the exception.)
    """
    tasks = [asyncio.create_task(coroutine) for coroutine in work]
    if not tasks:
        return []
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        await end_tasks(tasks)
    for task in done:
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error
    return [task.result() for task in tasks]


async def end_tasks(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel the tasks that still run and wait for their end."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # retrieved, so that the loop does not report it a second time


def was_cancelled() -> bool:
    """Tell whether someone asked the current task to end, as opposed to code that raised CancelledError."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def check_awaitable(items: Sequence[object], what: str, of_what: str) -> None:
    """Check that all items can be awaited, before any of them is started.

    Args:
        items: The items.
        what: Names the parameter in the message.
        of_what: Names what each of them should give.

    Raises:
        InvalidTrajectoriesError: One cannot be awaited; the others are given up.
    """
    for i, item in enumerate(items):
        if not inspect.isawaitable(item):
            for other in items:
                discard(other)
            raise InvalidTrajectoriesError(
                f"{what}[{i}] is a {type(item).__name__}; expected an awaitable of {of_what}, "
                "such as a call of an async function"
            )


def discard(awaitable: object) -> None:
    """Give up an awaitable that may not have been started, without Python's warning about it."""
    if inspect.iscoroutine(awaitable):
        if inspect.getcoroutinestate(awaitable) == inspect.CORO_CREATED:
            awaitable.close()
    elif isinstance(awaitable, asyncio.Future):
        awaitable.cancel()
