"""Blocking work off the event loop, all or nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")


async def run_blocking(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a blocking function in a thread and wait for its end, even when cancelled meanwhile.

    A thread cannot be stopped halfway. Were the cancellation passed on at once, the write would go on behind
    the caller's back and could land after a later one; so it is passed on when the write has ended.
    """
    work = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        if not work.cancelled():
            work.exception()  # retrieved, so that the loop does not report it; the cancellation wins
        raise
