"""Ways to break off a train while the adapter is at work."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from art_conformance.failure import expect
from art_conformance.instruments.streams import interfering

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from art_conformance.run import Run


def deadline_s(run: Run) -> float:
    """Return how long a cancelled train may take: an adapter may have to wait for remote work that goes on."""
    return max(5.0, run.stage.adapter.timeout_s / 4)


@dataclass(frozen=True)
class Moment:
    """When the task that trains is cancelled.

    Attributes:
        words: The moment, in words.
        after: So many events have come.
        at_the_yield: The backend is not asked for more, so its stream is closed where it yielded. Else it is
            asked, and the cancellation reaches whatever it waits for.
    """

    words: str
    after: int
    at_the_yield: bool = False


BEFORE_THE_FIRST_EVENT = Moment("before its first event", 0)
AFTER_THE_FIRST_EVENT = Moment("after its first event", 1)
AT_THE_FIRST_EVENT = Moment("where it yields its first event", 1, at_the_yield=True)


async def cancelled_train(run: Run, moment: Moment) -> asyncio.Task[Any]:
    """Train, cancel the task at a moment, and return the task, which has ended within the deadline."""
    asked = asyncio.Event()

    async def cancelling(stream: Any) -> AsyncIterator[Any]:
        async with aclosing(stream):
            await _cancel_if(0)
            number = 0
            async for event in stream:
                if asked.is_set():
                    await asyncio.sleep(0)  # a backend that waits for nothing is told here
                yield event
                number += 1
                await _cancel_if(number)

    async def _cancel_if(number: int) -> None:
        task = asyncio.current_task()
        if number == moment.after and task is not None:
            task.cancel()
            asked.set()
            if moment.at_the_yield:
                await asyncio.sleep(0)

    with interfering(run, cancelling):
        task = asyncio.create_task(run.train())
        try:
            await _either(asked, task)
            await asyncio.wait([task], timeout=deadline_s(run))
            expect(
                task.done(),
                got="it goes on",
                expected=f"its end within {deadline_s(run):g} s",
                sent=f"cancelled the task that trains, {moment.words}",
            )
        finally:
            task.cancel()
    return task


def outcome(task: asyncio.Task[Any]) -> str:
    """Say how a task ended."""
    if task.cancelled():
        return "CancelledError"
    error = task.exception()
    return (
        "a result, as if nothing had been" if error is None else f"{type(error).__name__}: {error}"
    )


async def _either(event: asyncio.Event, task: asyncio.Task[Any]) -> None:
    """Wait until the event is set, or the task has ended without it."""
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait([waiting, task], return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
