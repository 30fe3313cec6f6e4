"""INF, continued: what is served while a train or a deletion goes on, and after one that did not come to its end."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from art_conformance.check import check
from art_conformance.failure import expect, expect_equal
from art_conformance.instruments.cancelling import AFTER_THE_FIRST_EVENT, cancelled_train
from art_conformance.instruments.endpoint_client import (
    endpoint_of,
    expect_refused,
    expect_step,
    latest_name,
)
from art_conformance.verdict import Level

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from art_conformance.instruments.endpoint_client import Answer, Streamed
    from art_conformance.stage import Stage

T = TypeVar("T")

_INFERENCE = ("inference",)
# Enough for an answer to be on its way while a deletion begins.
_LONG = 32


@check(
    "INF-14",
    clause="D5",
    level=Level.INFERENCE,
    needs=_INFERENCE,
    cause="a checkpoint is unloaded under the requests that it is answering",
)
async def requests_in_flight_end(stage: Stage) -> None:
    """Requests in flight on a checkpoint that is deleted finish or end with a clear error; others go on."""
    run = await stage.run()
    first = await run.step()
    await run.train()
    doomed, kept = run.model.get_inference_name(first), run.model.get_inference_name(first + 1)
    sent = "begun before _delete_checkpoint_files(model, [N+1])"
    begun = [asyncio.Event(), asyncio.Event()]
    async with endpoint_of(run) as endpoint:
        requests: list[Coroutine[Any, Any, Any]] = [
            endpoint.stream(doomed, f"name@N, {sent}", event, max_tokens=_LONG) for event in begun
        ]
        requests += [endpoint.ask(kept, f"name@N+1, {sent}", max_tokens=_LONG) for _ in range(2)]
        async with _beside(*requests) as tasks:
            for event in begun:
                await event.wait()
            await run.backend._delete_checkpoint_files(run.model, [first + 1])
            *streams, one, another = await asyncio.gather(*tasks)
    for streamed in streams:
        _expect_clear_end(streamed, first)
    for answer in (one, another):
        expect_step(answer, first + 1, of=first)


@asynccontextmanager
async def _beside(*work: Coroutine[Any, Any, T]) -> AsyncIterator[list[asyncio.Task[T]]]:
    """Run something beside the block; what goes on at its end is cancelled."""
    tasks = [asyncio.create_task(coroutine) for coroutine in work]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _expect_clear_end(streamed: Streamed, step: int) -> None:
    expected = "a finished answer, or an error that the client can tell"
    is_clear = streamed.is_finished or streamed.is_refused
    expect(is_clear, got="an answer that breaks off", expected=expected, sent=streamed.sent)
    if streamed.is_finished:
        steps = [c["checkpoint_step"] for c in streamed.choices if "checkpoint_step" in c]
        is_own = all(own == step for own in steps)
        expect(is_own, got="another step's", expected="N's own answer", sent=streamed.sent)


@check(
    "INF-15",
    clause="T4",
    level=Level.INFERENCE,
    needs=_INFERENCE,
    cause="the engine is stopped or reloaded for a train, and refuses what comes meanwhile",
)
async def requests_during_a_train_are_answered(stage: Stage) -> None:
    """A request during a train is answered by a checkpoint that exists; it may have to wait, and never fails."""
    run = await stage.run()
    first = await run.step()
    answers: list[Answer] = []
    async with endpoint_of(run) as endpoint, _beside(run.train()) as (train,):
        while not train.done():
            answers.append(await endpoint.ask(latest_name(run), "the latest name, during a train"))
            await asyncio.sleep(0.02)
        await train
    for answer in answers:
        expect_step(answer, first + 1 if answer.step == first + 1 else first, of=first)


@check(
    "INF-16",
    clause="T5",
    level=Level.INFERENCE,
    needs=_INFERENCE,
    cause="the new name is published when a train begins, not when its checkpoint is complete",
)
async def a_cancelled_train_is_not_served(stage: Stage) -> None:
    """After a cancelled train the endpoint serves no unfinished checkpoint, and the latest is still N."""
    run = await stage.run()
    first = await run.step()
    await cancelled_train(run, AFTER_THE_FIRST_EVENT)
    async with endpoint_of(run) as endpoint:
        name = run.model.get_inference_name(first + 1)
        new = await endpoint.ask(name, "name@N+1, after its train was cancelled")
        latest = await endpoint.ask(latest_name(run), "the latest name, after a cancelled train")
    try:
        checkpoints = await run.checkpoints()
    finally:
        await run.train()  # whatever was left, the books and the backend agree about the step again
    if first + 1 in checkpoints:  # the cancellation came too late, and the checkpoint stays
        expect_step(latest, first + 1 if latest.step == first + 1 else first, of=first)
    else:
        expect_refused(new, of=first)
        expect_step(latest, first, of=first)


@check(
    "INF-23",
    clause="T5",
    level=Level.FULL,
    needs=_INFERENCE,
    cause="what failed half-way is served, or the clean-up takes the latest checkpoint with it",
)
async def a_failed_train_is_not_served(stage: Stage) -> None:
    """After a train that failed while it saved its checkpoint the latest is still N, and N+1 is unknown."""
    run = await stage.run()
    first = await run.step()
    await run.fail_next("train_commit")
    with contextlib.suppress(Exception):
        await run.train()
    expect_equal(await run.step(), first, sent="a train that the probe makes fail; the step")
    async with endpoint_of(run) as endpoint:
        name = run.model.get_inference_name(first + 1)
        expect_refused(await endpoint.ask(name, "name@N+1, after its train failed"), of=first)
        latest = await endpoint.ask(latest_name(run), "the latest name, after a failed train")
        expect_step(latest, first, of=first)
