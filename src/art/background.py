"""Blocking work off the event loop, all or nothing."""

from __future__ import annotations

import asyncio
import contextvars
import functools
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")


async def run_blocking(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a blocking function in a thread and wait for its end, even when cancelled meanwhile.

    A thread cannot be stopped halfway. Were the cancellation passed on at once, the write would go on behind
    the caller's back and could land after a later one; so it is passed on when the write has ended, however
    often it is asked for.
    """
    call = functools.partial(contextvars.copy_context().run, function, *args, **kwargs)
    # A future, not the task of `asyncio.to_thread`: a loop that shuts down cancels every task.
    work = asyncio.get_running_loop().run_in_executor(None, call)
    cancellation: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as error:
            cancellation = error
    if cancellation is not None:
        work.exception()  # retrieved, so that the loop does not report it; the cancellation wins
        raise cancellation
    return work.result()
