"""CONC, continued: the end of a backend, and what it leaves behind."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from art.errors import ArtError
from art_conformance.check import check
from art_conformance.failure import expect, expect_equal
from art_conformance.instruments.life import watched_life
from art_conformance.instruments.streams import interfering
from art_conformance.stage import close_backend

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from art_conformance.run import Run
    from art_conformance.stage import Stage

_DEADLINE_S = 30.0
_closed: WeakKeyDictionary[Stage, Run] = WeakKeyDictionary()


@check(
    "CONC-07", clause="close", cause="close() forgets a thread, a task, a process or a connection"
)
async def nothing_is_left_after_the_end(stage: Stage) -> None:
    """A few seconds after close() no task, thread, child process or open file of the backend is left.

    A backend without `close` is let go of instead. The threads of the event loop's own pool do not count.
    """
    life = await watched_life(stage)
    sent = "made a backend, trained once, closed it; waited for 3 s"
    expect(not life.left, got=", ".join(life.left), expected="nothing", sent=sent)


@check(
    "CONC-08",
    clause="close",
    needs=("close",),
    cause="a train waits for what close() has ended, or a second close() meets what the first took away",
)
async def close_can_come_at_any_time(stage: Stage) -> None:
    """close() can be called again, and while a model trains: that train then ends, well or with an error."""
    backend = stage.new_backend("closed-while-training")
    deadline_s = min(_DEADLINE_S, stage.adapter.timeout_s / 2)
    run = await stage.new_run(backend=backend)
    is_training = asyncio.Event()

    async def telling(stream: Any) -> AsyncIterator[Any]:
        async with aclosing(stream):
            async for event in stream:
                is_training.set()
                await asyncio.sleep(0)
                yield event

    with interfering(run, telling):
        task = asyncio.create_task(run.train())
        task.add_done_callback(lambda _: is_training.set())
        try:
            await is_training.wait()
            async with asyncio.timeout(deadline_s):
                await asyncio.gather(backend.close(), backend.close())
            await asyncio.wait([task], timeout=deadline_s)
            sent = "close(), twice, after the first event of a train"
            expect(task.done(), got="the train goes on", expected="its end", sent=sent)
            await backend.close()
        finally:
            task.cancel()
            await asyncio.wait([task], timeout=1.0)
    if not task.cancelled():
        task.exception()  # whichever it is
    _closed[stage] = run


@check(
    "CONC-13",
    clause="close",
    needs=("close",),
    cause="a closed backend keeps what it has closed, and works with it",
)
async def a_closed_backend_works_again_or_says_so(stage: Stage) -> None:
    """A model that is registered with a closed backend trains on, or gets an ArtError."""
    run = await _run_of_a_closed_backend(stage)
    sent = "closed a backend that had trained, registered the model with it again, and trained"
    try:
        await run.model.register(run.recorder)
        step = await run.step()
        result = await run.train()
    except ArtError:
        return
    except Exception as error:  # noqa: BLE001 - whatever a closed thing raises
        expect(
            False,
            got=f"{type(error).__name__}: {error}",
            expected="the next step, or an ArtError that says that it is closed",
            sent=sent,
        )
    else:
        expect_equal(result.step - step, 1, sent=f"{sent}; steps")
    finally:
        await close_backend(run.backend)


async def _run_of_a_closed_backend(stage: Stage) -> Run:
    """Return the run of the check on close(), whose backend took long to start, or one like it."""
    run = _closed.pop(stage, None)
    if run is None:
        run = await stage.new_run(backend=stage.new_backend("closed"))
        await run.train()
        await close_backend(run.backend)
    return run
