"""Bound how many calls of a coroutine function run at once."""

from __future__ import annotations

import asyncio
import functools
import weakref
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar

from art.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    # A semaphore lives as long as a call holds or awaits it, so that many keys do not pile up.
    Semaphores: TypeAlias = weakref.WeakValueDictionary[str, asyncio.Semaphore]

P = ParamSpec("P")
R = TypeVar("R")


def limit_concurrency(
    n: int, derive_key: Callable[..., str] | None = None
) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Coroutine[Any, Any, R]]]:
    """Decorate a coroutine function so that at most `n` of its calls run at once; others wait.

    Args:
        n: How many.
        derive_key: Called with the call's arguments; calls with different keys do not wait for each other.

    Raises:
        ConfigurationError: `n` is less than 1.
    """
    if n < 1:
        raise ConfigurationError(f"limit_concurrency({n}): at least one call must be able to run")
    # A semaphore belongs to one event loop.
    by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Semaphores] = (
        weakref.WeakKeyDictionary()
    )

    def decorate(function: Callable[P, Awaitable[R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        @functools.wraps(function)
        async def call(*args: P.args, **kwargs: P.kwargs) -> R:
            key = derive_key(*args, **kwargs) if derive_key is not None else ""
            loop = asyncio.get_running_loop()
            semaphores = by_loop.setdefault(loop, weakref.WeakValueDictionary())
            semaphore = semaphores.setdefault(key, asyncio.Semaphore(n))
            async with semaphore:
                return await function(*args, **kwargs)

        return call

    return decorate
