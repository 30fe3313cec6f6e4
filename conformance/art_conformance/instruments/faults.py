"""Faults that are put between a backend and the frontend: streams of training that break off."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from art_conformance.failure import SetupError, Unobservable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable


class Injected(Exception):  # noqa: N818 - what it is, not what kind of error
    """Raised in a backend's place."""


async def before_the_first_event(stream: Any) -> AsyncIterator[Any]:
    """Break off before the frontend has seen an event. The backend is closed where it yields its first one."""
    async with aclosing(stream):
        async for _ in stream:
            break
        raise Injected("broken before the first event")
    yield  # never reached: it makes this a generator


async def after_the_first_event(stream: Any) -> AsyncIterator[Any]:
    """Break off where the frontend asks for the second event. The backend is closed where it yielded the first."""
    async with aclosing(stream):
        async for event in stream:
            yield event
            break
    raise Injected("broken after the first event")


async def after_the_last_event(stream: Any) -> AsyncIterator[Any]:
    """Let the backend come to its end, and break off before the frontend hears of it."""
    async with aclosing(stream):
        async for event in stream:
            yield event
    raise Injected("broken after the commit")


async def failure_of(call: Awaitable[object]) -> BaseException | None:
    """Return what a call raises, None where it ends well.

    What ends a program, a cancellation, and what the suite raises itself go on their way.
    """
    try:
        await call
    except (asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except (SetupError, Unobservable):
        raise
    except BaseException as error:  # noqa: BLE001 - what kind it is, is for the check to judge
        return error
    return None
