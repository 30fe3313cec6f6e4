"""CONC: trains that are cancelled, closed, or run beside others."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from art_conformance.check import FRONTEND_AT_FAULT, GUARDS_THE_FRONTEND, check
from art_conformance.failure import Unobservable, expect, expect_equal
from art_conformance.instruments.cancelling import (
    AFTER_THE_FIRST_EVENT,
    AT_THE_FIRST_EVENT,
    BEFORE_THE_FIRST_EVENT,
    Moment,
    cancelled_train,
    deadline_s,
    outcome,
)
from art_conformance.instruments.complaints import Complaints
from art_conformance.instruments.slow_threads import slow_threads
from art_conformance.instruments.streams import (
    call_train,
    interfering,
    put_away,
    weights_of_a_train,
)
from art_conformance.verdict import Level

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from art_conformance.run import Run
    from art_conformance.stage import Stage

_SAVING_S = 0.5
_NEW, _NONE = "a new checkpoint", "no new checkpoint"


@dataclass(frozen=True)
class _Usual:
    """What a train is like that nobody disturbs."""

    num_events: int
    seconds: float


async def _usual_train(run: Run) -> _Usual:
    start = time.monotonic()
    await run.train()
    return _Usual(len(run.recorder.last.events), time.monotonic() - start)


@check("CONC-01", clause="T5", cause="CancelledError is caught and not raised again")
async def cancellation_is_not_swallowed(stage: Stage) -> None:
    """A train that is cancelled after its first event ends in CancelledError in good time."""
    run = await stage.run()
    task = await cancelled_train(run, AFTER_THE_FIRST_EVENT)
    sent = "cancelled the task that trains, after the first event of the stream"
    expect_equal(outcome(task), "CancelledError", sent=sent)


@check(
    "CONC-02",
    clause="T5",
    level=Level.FULL,
    cause="the work goes on in the background and commits, or the clean-up saves what there is",
)
async def a_cancelled_train_leaves_no_checkpoint(stage: Stage) -> None:
    """After a cancellation no checkpoint `target_step` exists, and none appears a while later.

    A backend whose only event is out may have committed at that very moment: there the checkpoint may be
    there at once, but must not appear later.
    """
    run = await stage.run()
    await run.checkpoints()
    usual = await _usual_train(run)
    before = await run.checkpoints()
    moments = [AFTER_THE_FIRST_EVENT, AT_THE_FIRST_EVENT, BEFORE_THE_FIRST_EVENT]
    excused: set[int] = set()
    for moment in moments:
        await run.settle()
        target = await run.step() + 1
        await cancelled_train(run, moment)
        if moment.after and (usual.num_events == 1 or run.recorder.last.ended):
            excused |= await run.checkpoints() & {target}
        found = await run.checkpoints() - before - excused
        expect(not found, got=_NEW, expected=_NONE, sent=f"cancelled a train {moment.words}")
    await asyncio.sleep(1.5 * usual.seconds + 0.2)
    found = await run.checkpoints() - before - excused
    expect(not found, got=_NEW, expected=_NONE, sent="cancelled a train, and waited for a while")


@check("CONC-03", clause="T5", cause="a lock or a flag of the cancelled call is never released")
async def the_next_train_works_after_a_cancellation(stage: Stage) -> None:
    """After a cancelled train the next one makes step N+1."""
    run = await stage.run()
    usual = await _usual_train(run)
    step = await run.step()
    await cancelled_train(run, AT_THE_FIRST_EVENT)
    result = await run.train()
    # A backend that trains ahead of its events may have made the checkpoint, and then it tells.
    is_told = run.recorder.last.ended or usual.num_events == 1
    is_told = is_told and run.capabilities.step is not None
    expect(
        result.step == step + 1 or (is_told and result.step == step + 2),
        got=f"N+{result.step - step}",
        expected="N+1",
        sent="cancelled a train from step N, and trained again",
    )


@check("CONC-04", clause="T5", cause="an inner generator, a task or a coroutine is left to itself")
async def closing_the_stream_early_cleans_up(stage: Stage) -> None:
    """A stream that is closed after its first event, or that its consumer lets go of, is cleaned up.

    Python complains about nothing (a coroutine never awaited, a task destroyed, an asynchronous generator not
    closed), and no async generator that the train began stays open.
    """
    run = await stage.run()
    await run.train()
    with Complaints() as complaints:
        stream = call_train(run, await run.step() + 1, await run.groups())
        async for _ in stream:
            break
        await put_away(run, stream)
        del stream
        await complaints.settle()
        sent = "closed the stream of a train after its first event"
        expect(not complaints.heard, got="; ".join(complaints.heard), expected="quiet", sent=sent)
        await _let_go_of_a_stream(run)
        await complaints.settle()
        sent = "left a loop over the stream of a train after its first event"
        expect(not complaints.heard, got="; ".join(complaints.heard), expected="quiet", sent=sent)


async def _let_go_of_a_stream(run: Run) -> None:
    async for _ in call_train(run, await run.step() + 1, await run.groups()):
        break


@check("CONC-10", clause="T5", cause="a cancellation is turned into an error of the adapter's own")
async def a_timeout_ends_like_a_cancellation(stage: Stage) -> None:
    """A train under a timeout ends in TimeoutError and the next one works."""
    run = await stage.run()
    limit = asyncio.timeout(None)

    async def running_out(stream: Any) -> AsyncIterator[Any]:
        async with aclosing(stream):
            async for event in stream:
                yield event
                limit.reschedule(asyncio.get_running_loop().time())

    sent = "trained in `asyncio.timeout`, which ran out after the first event"
    try:
        with interfering(run, running_out):
            async with limit:
                await run.train()
    except TimeoutError:
        pass
    except Exception as error:  # noqa: BLE001 - whatever the adapter makes of it
        expect(False, got=f"{type(error).__name__}: {error}", expected="TimeoutError", sent=sent)
    else:
        expect(False, got="a result", expected="TimeoutError", sent=sent)
    step = await run.step()
    expect(
        (await run.train()).step > step,
        got="no new step",
        expected="a new step",
        sent=f"{sent}; then again",
    )


@check("CONC-12", clause="T5", cause=FRONTEND_AT_FAULT, redundant=GUARDS_THE_FRONTEND)
async def an_endless_stream_can_be_cancelled(stage: Stage) -> None:
    """A cancellation ends a train whose stream never ends, and the next train works."""
    run = await stage.run()
    has_begun = asyncio.Event()

    async def endless(stream: Any) -> AsyncIterator[Any]:
        async with aclosing(stream):
            async for event in stream:
                yield event
                break
        has_begun.set()
        while True:
            await asyncio.sleep(0.01)
            yield {"loss": 1.0}

    sent = "cancelled a train whose stream never ends"
    with interfering(run, endless):
        task = asyncio.create_task(run.train())
        task.add_done_callback(lambda _: has_begun.set())
        await has_begun.wait()
        task.cancel()
        await asyncio.wait([task], timeout=deadline_s(run))
    expect(task.done(), got="it goes on", expected="its end", sent=sent)
    expect_equal(outcome(task), "CancelledError", sent=sent)
    step = await run.step()
    expect(
        (await run.train()).step > step,
        got="no new step",
        expected="a new step",
        sent=f"{sent}; then again",
    )


@check("CONC-14", clause="T5", cause="the start of a train is not guarded against a cancellation")
async def a_cancellation_at_the_start_changes_nothing(stage: Stage) -> None:
    """A train that is cancelled before its first event ends in CancelledError in good time; the next makes N+1."""
    run = await stage.run()
    step = await run.step()
    task = await cancelled_train(run, BEFORE_THE_FIRST_EVENT)
    sent = "cancelled the task that trains, before the first event of the stream"
    expect_equal(outcome(task), "CancelledError", sent=sent)
    result = await run.train()
    expect_equal(f"N+{result.step - step}", "N+1", sent=f"{sent}, and trained again")


@check(
    "CONC-15",
    clause="T5",
    level=Level.FULL,
    cause="a warm trainer goes on from the weights of the cancelled train",
)
async def the_next_train_starts_clean(stage: Stage) -> None:
    """After a cancelled train the next one trains from checkpoint N, not from what the cancelled one had reached.

    Compared by the weights that the same batch gives from the same checkpoint; where these differ without any
    cancellation, nothing can be seen.
    """
    run = await stage.run()
    target = await run.step() + 1
    expected = await weights_of_a_train(run, target)
    if await weights_of_a_train(run, target) != expected:
        raise Unobservable("the same batch gives other weights each time")
    await _cancel_past_the_frontend(run, target)
    got = await weights_of_a_train(run, target)
    expect(
        got == expected,
        got="other weights",
        expected="the weights that this batch gives from checkpoint N",
        sent="cancelled a train after its first event, and trained the same batch again",
    )


async def _cancel_past_the_frontend(run: Run, target: int) -> None:
    groups = await run.groups()

    async def train() -> None:
        async for _ in call_train(run, target, groups):
            asyncio.current_task().cancel()  # type: ignore[union-attr]

    task = asyncio.create_task(train())
    await asyncio.wait([task])


@check(
    "CONC-17",
    clause="T5",
    level=Level.FULL,
    cause="the checkpoint is saved by `asyncio.to_thread`, which a cancellation leaves at once while its thread "
    "goes on; `art.adapter_kit.blocking.run_blocking` waits for the thread",
)
async def a_cancelled_commit_is_done_or_not(stage: Stage) -> None:
    """A cancellation that arrives while the checkpoint is saved ends with the checkpoint made or not; none appears later.

    What the event loop hands to threads is delayed meanwhile.
    """
    run = await stage.run()
    usual = await _usual_train(run)
    moment = Moment("after its last event", max(1, usual.num_events))
    with slow_threads(_SAVING_S):
        await cancelled_train(run, moment)
        at_once = await run.checkpoints()
        await asyncio.sleep(3 * _SAVING_S)
    later = await run.checkpoints()
    expect(
        later == at_once,
        got=_NEW,
        expected=_NONE,
        sent="cancelled a train after its last event, and waited for a while after its end",
    )
