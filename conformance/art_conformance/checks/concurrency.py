"""CONC, continued: several trains and several event loops at once, and an event loop that is not held up."""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from art.adapter_kit.advantages import is_trainable
from art_conformance.check import FRONTEND_AT_FAULT, GUARDS_THE_FRONTEND, check
from art_conformance.checks.multi import twin
from art_conformance.failure import expect, expect_equal
from art_conformance.instruments.streams import interfering
from art_conformance.instruments.ticker import Ticker
from art_conformance.verdict import Level

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    import art
    from art_conformance.run import Run
    from art_conformance.stage import Stage

_HELD_UP_S = 0.25


@check(
    "CONC-05",
    clause="T7",
    cause="what belongs to one train (its model, its target) is kept on the backend",
)
async def two_models_train_at_once(stage: Stage) -> None:
    """Two models that train at the same time get their own steps, and as many events as each gets alone."""
    runs = await stage.run(), await twin(stage)
    batches = [await _one_group(runs[0]), await runs[1].groups()]
    first = [await run.step() for run in runs]
    together = await asyncio.gather(
        *(run.train(batch) for run, batch in zip(runs, batches, strict=True))
    )
    events = [len(run.recorder.last.events) for run in runs]
    sent = "trained two models at the same time, one of them on a part of the batch"
    steps = [result.step - step for result, step in zip(together, first, strict=True)]
    expect_equal(steps, [1, 1], sent=f"{sent}; steps")
    for run, batch, step, number in zip(runs, batches, first, events, strict=True):
        alone = await run.train(batch)
        expect_equal(alone.step - step, 2, sent=f"{sent}, then each alone; steps")
        expect_equal(
            number, len(run.recorder.last.events), sent=f"{sent}; events of each, as alone"
        )


@check(
    "CONC-06", clause="async", cause="blocking work on the event loop: files, tokenising, waiting"
)
async def the_event_loop_is_not_blocked(stage: Stage) -> None:
    """No train, no deletion and no repeated registration holds up the event loop for more than 250 ms.

    Measured without the time that the thread waits for a processor. A second measurement must confirm it.
    """
    run = await stage.run()
    calls: list[tuple[str, Callable[[], Awaitable[object]]]] = [
        ("trained", run.train),
        ("deleted checkpoints", lambda: run.model.delete_checkpoints(None)),
        ("registered the model again", lambda: run.model.register(run.model.backend())),
    ]
    for words, call in calls:
        is_fine = await _held_up(call) <= _HELD_UP_S or await _held_up(call) <= _HELD_UP_S
        expect(
            is_fine,
            got="a longer time, twice",
            expected="never more than 250 ms without a turn of the event loop",
            sent=words,
        )


async def _held_up(call: Callable[[], Awaitable[object]]) -> float:
    async with Ticker() as ticker:
        await call()
    return ticker.longest_s


@check(
    "CONC-09",
    clause="async",
    cause="a client, lock, queue or task of the first event loop is used on the next one",
)
async def other_event_loops_can_go_on(stage: Stage) -> None:
    """Three `asyncio.run` in a row work with the same model and backend: train, log, train."""
    run = await stage.run()
    step = await run.step()
    calls: list[Callable[[], Any]] = [
        run.train,
        lambda: run.model.log(metrics={"accuracy": 0.5}),
        run.train,
    ]
    results = await _in_a_thread(lambda: [asyncio.run(call()) for call in calls])
    steps = [result.step - step for result in results if result is not None]
    expect_equal(
        steps, [1, 2], sent="train, log, train: each in an `asyncio.run` of its own; steps"
    )


async def _in_a_thread(work: Callable[[], Any]) -> Any:
    """Run in a daemon thread: one that hangs must not keep the process from its end."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def tell(result: Any, error: Exception | None) -> None:
        if not future.done():
            future.set_result(result) if error is None else future.set_exception(error)

    def run() -> None:
        outcome: tuple[Any, Exception | None]
        try:
            outcome = work(), None
        except Exception as error:  # noqa: BLE001 - raised where it is awaited
            outcome = None, error
        loop.call_soon_threadsafe(tell, *outcome)

    threading.Thread(target=run, name="conformance-loops", daemon=True).start()
    return await future


@check(
    "CONC-11",
    clause="steps",
    cause=FRONTEND_AT_FAULT,
    redundant=GUARDS_THE_FRONTEND,
)
async def trains_of_one_model_queue_up(stage: Stage) -> None:
    """Two trains of one model at the same time make N+1 and N+2; the backend never has two streams of it."""
    run = await stage.run()
    step = await run.step()
    is_open, overlapped = False, False

    async def watching(stream: Any) -> AsyncIterator[Any]:
        nonlocal is_open, overlapped
        overlapped, is_open = overlapped or is_open, True
        async with aclosing(stream):
            async for event in stream:
                yield event
        is_open = False

    with interfering(run, watching):
        results = await asyncio.gather(run.train(), run.train())
    sent = "two `model.train` of one model at the same time"
    steps = sorted(result.step - step for result in results)
    expect_equal(steps, [1, 2], sent=f"{sent}; steps")
    expect(not overlapped, got="two open streams", expected="one after the other", sent=sent)


@check(
    "CONC-16",
    clause="T7",
    level=Level.FULL,
    cause="what is to be sent for a train is kept on the backend, and another train writes over it",
)
async def batches_of_two_models_are_not_mixed(stage: Stage) -> None:
    """Two models that train at the same time are each trained on their own batch, with their own learning rate."""
    runs = await stage.run(), await twin(stage)
    batches = [await _one_group(runs[0]), await runs[1].groups()]
    rates = [1e-4, 3e-4]
    before = [len(await run.received()) for run in runs]
    await asyncio.gather(
        *(run.train(b, rate) for run, b, rate in zip(runs, batches, rates, strict=True))
    )
    sent = "trained two models at the same time, with batches and learning rates of their own"
    for run, batch, rate, number in zip(runs, batches, rates, before, strict=True):
        received = (await run.received())[number:]
        expect_equal(len(received), 1, sent=f"{sent}; calls that left the adapter for each")
        expect_equal(received[0].learning_rate, rate, sent=f"{sent}; learning rate")
        if received[0].num_trajectories is not None:
            count = sum(len(group.trajectories) for group in batch)
            expect_equal(received[0].num_trajectories, count, sent=f"{sent}; trajectories")


async def _one_group(run: Run) -> list[art.TrajectoryGroup]:
    return [group for group in await run.groups() if is_trainable(group)][:1]
