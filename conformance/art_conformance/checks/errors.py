"""ERR: what fails is told, leaves nothing behind, and can be tried again."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import art
from art.errors import UnsupportedByBackend
from art_conformance.check import FRONTEND_AT_FAULT, GUARDS_THE_FRONTEND, check
from art_conformance.failure import CheckFailed, expect, expect_equal
from art_conformance.instruments.faults import (
    Injected,
    after_the_first_event,
    after_the_last_event,
    before_the_first_event,
    failure_of,
)
from art_conformance.instruments.secrets_told import plain_groups, told_secrets
from art_conformance.instruments.streams import interfering
from art_conformance.verdict import Level

if TYPE_CHECKING:
    from collections.abc import Callable

    from art_conformance.adapter import Fault
    from art_conformance.run import Run
    from art_conformance.stage import Stage

_OWN_FAILURE = "the adapter swallows its error, or commits before it has trained"


@check("ERR-01", clause="T5", cause="it yields once more while it is closed")
async def an_early_error_leaves_the_rollouts(stage: Stage) -> None:
    """An error before the first event reaches the caller as it is; the rollouts stay logged, no training row is written, the step stays."""
    run = await stage.run()
    step, num_rows = await run.step(), len(run.rows())
    sent = await _broken_train(run, before_the_first_event)
    expect_equal(await run.step(), step, sent=sent)
    new = run.rows()[num_rows:]
    expect_equal([row["step"] for row in new], [step], sent=sent)
    expect("train/reward" in new[0], got=new[0], expected="the rollouts' row", sent=sent)


@check("ERR-02", clause="T5", cause="it yields once more while it is closed, or stays busy")
async def a_broken_stream_can_be_tried_again(stage: Stage) -> None:
    """A train that breaks between two events closes the adapter's stream, and the next train makes the same step."""
    run = await stage.run()
    step = await run.step()
    sent = await _broken_train(run, after_the_first_event)
    expect_equal(await run.step(), step, sent=sent)
    await _expect_next_train(run, await _settled_step(run) + 1, sent)


@check(
    "ERR-03",
    clause="T8",
    cause="a target step that exists already is refused, or _get_step is not the newest checkpoint",
)
async def no_step_is_numbered_twice_after_a_commit(stage: Stage) -> None:
    """After a break between the commit and the end, the next train goes on from the checkpoint, or makes it anew where the backend cannot tell its step."""
    run = await stage.run()
    step = await run.step()
    sent = await _broken_train(run, after_the_last_event)
    can_tell = run.capabilities.step is not None
    await _expect_next_train(run, step + 2 if can_tell else step + 1, sent)
    trained = [row["step"] for row in run.rows() if "train/num_groups_submitted" in row]
    expect_equal(trained, sorted(set(trained)), sent=sent)


@check("ERR-04", clause="T5", level=Level.FULL, cause=_OWN_FAILURE)
async def a_failure_at_the_start_is_told(stage: Stage) -> None:
    """A failure of the adapter before its first event reaches the caller, leaves no checkpoint, and the next train makes that step."""
    await _expect_a_clean_failure(stage, "train_start")


@check("ERR-05", clause="T5", level=Level.FULL, cause=_OWN_FAILURE)
async def a_failure_in_the_middle_is_told(stage: Stage) -> None:
    """A failure of the adapter between two events reaches the caller, leaves no checkpoint, and the next train makes that step."""
    await _expect_a_clean_failure(stage, "train_middle")


@check("ERR-06", clause="T5", level=Level.FULL, cause=_OWN_FAILURE)
async def a_failure_of_the_commit_is_told(stage: Stage) -> None:
    """A failure of the adapter while it saves the checkpoint reaches the caller, leaves no checkpoint, and the next train makes that step."""
    await _expect_a_clean_failure(stage, "train_commit")


@check(
    "ERR-07", clause="errors", cause="a message quotes the request, with its headers or its body"
)
async def no_secret_is_told(stage: Stage) -> None:
    """Neither exceptions nor log records hold an API key or the text of a prompt.

    Of prompts log records from INFO up are looked at; of keys all. Keys are the endpoint's, and every variable
    of the environment whose name ends in `_API_KEY`.
    """
    run = await stage.run()
    calls: list[Callable[[], Any]] = [
        run.train,
        lambda: run.train(an_option_that_no_backend_knows=1),
        lambda: run.train(plain_groups()),
    ]
    told = await told_secrets(run, calls)
    sent = "a good train, one with an unknown option, one on rollouts without token ids"
    expect_equal(told, [], sent=sent)


@check("ERR-08", clause="errors", level=Level.FULL, cause="an error is raised without a message")
async def a_failure_has_a_message(stage: Stage) -> None:
    """A train that fails raises an `Exception` with a message."""
    run = await stage.run()
    await run.fail_next("train_middle")
    error = await failure_of(run.train())
    sent = "model.train(groups), while the adapter was made to fail"
    kind = type(error).__name__
    expect(isinstance(error, Exception), got=kind, expected="an Exception", sent=sent)
    expect(str(error).strip(), got=f"{kind} without a message", expected="a message", sent=sent)


@check("ERR-09", clause="capabilities", cause=FRONTEND_AT_FAULT, redundant=GUARDS_THE_FRONTEND)
async def what_is_missing_is_told(stage: Stage) -> None:
    """`model.train_sft` with a backend that cannot do it raises UnsupportedByBackend, and the step stays."""
    run = await stage.new_run(only_two_methods=True)
    trajectories = [t for group in await run.groups() for t in group.trajectories]
    error = await failure_of(run.model.train_sft(trajectories))
    sent = "model.train_sft(trajectories), with nothing but the two methods"
    is_told = isinstance(error, UnsupportedByBackend)
    expect(is_told, got=type(error).__name__, expected="UnsupportedByBackend", sent=sent)
    expect_equal(await run.step(), 0, sent=sent)


@check("ERR-10", clause="errors", level=Level.FULL, cause="a message quotes the request")
async def no_secret_is_told_by_a_failure(stage: Stage) -> None:
    """The adapter's own failures tell neither an API key nor the text of a prompt."""
    run = await stage.run()
    told: list[str] = []
    faults: tuple[Fault, ...] = ("train_start", "train_middle", "train_commit")
    for fault in faults:
        await run.fail_next(fault)
        told += await told_secrets(run, [run.train])
    expect_equal(told, [], sent="model.train(groups), while the adapter was made to fail")


@check(
    "ERR-11", clause="T5", level=Level.FULL, cause="the checkpoint is saved as the stream is closed"
)
async def a_broken_stream_leaves_no_checkpoint(stage: Stage) -> None:
    """After a train that broke between two events there is no checkpoint of its step, unless it was there when it broke.

    An adapter that trains ahead of its events is given the time to come to its commit before the break.
    """
    run = await stage.run()
    patience_s = 3 * await _seconds_after_the_first_event(run) + 0.1
    target = await run.step() + 1
    at_the_break: list[set[int]] = []

    async def looking(stream: Any) -> Any:
        async for event in after_the_first_event(stream):
            await asyncio.sleep(patience_s)
            at_the_break.append(await run.checkpoints())
            yield event

    before = await run.checkpoints()
    sent = await _broken_train(run, looking)
    allowed = at_the_break[-1] if at_the_break else before
    is_clean = target not in await run.checkpoints() or target in allowed
    expect(is_clean, got="checkpoint N+1", expected="none", sent=sent)


@check("ERR-12", clause="T4", needs=("sft",), level=Level.FULL, cause="_train_sft is only a stub")
async def fine_tuning_makes_a_step(stage: Stage) -> None:
    """`model.train_sft` makes one step and brings metrics, and the next train goes on from it."""
    run = await stage.run()
    step = await run.step()
    trajectories = [t for group in await run.groups() for t in group.trajectories]
    result = await run.model.train_sft(trajectories, art.TrainSFTConfig(learning_rate=1e-4))
    sent = "model.train_sft(trajectories)"
    expect_equal(result.step, step + 1, sent=sent)
    expect(result.metrics, got="no metrics", expected="at least one", sent=sent)
    await _expect_next_train(run, step + 2, sent)


@check(
    "ERR-13", clause="T5", level=Level.FULL, cause="the weights of a failed train stay in memory"
)
async def a_failed_train_leaves_no_trace(stage: Stage) -> None:
    """The train after a failed one starts from checkpoint N: with a learning rate of 0.0 it ends with the weights of N."""
    run = await stage.run()
    # Checkpoint 0 may be the base model, without files of its own.
    step = await run.step() or (await run.train()).step
    expected = await run.weights(step)
    await run.fail_next("train_middle")
    await failure_of(run.train(learning_rate=1e-2))
    result = await run.train(learning_rate=0.0)
    sent = "a train that failed in the adapter, then one with learning_rate=0.0"
    expect_equal(result.step, step + 1, sent=sent)
    is_same = await run.weights(step + 1) == expected
    expect(is_same, got="other weights", expected="the weights of checkpoint N", sent=sent)


# --- their parts


async def _broken_train(run: Run, fault: Callable[[Any], Any]) -> str:
    """Let a train break off, and return what was sent."""
    with interfering(run, fault):
        error = await failure_of(run.train())
    sent = "model.train(groups), while the stream between frontend and adapter was broken"
    got = "no error" if error is None else f"{type(error).__name__}: {error}"
    expect(type(error) is Injected, got=got, expected="the error that broke it", sent=sent)
    return sent


async def _seconds_after_the_first_event(run: Run) -> float:
    """Train undisturbed, and return how long that took from its first event to its end."""
    first_s: list[float] = []

    async def timed(stream: Any) -> Any:
        async with aclosing(stream):
            async for event in stream:
                first_s.append(time.monotonic())
                yield event

    with interfering(run, timed):
        await run.train()
    return time.monotonic() - first_s[0] if first_s else 0.0


async def _settled_step(run: Run) -> int:
    """Return the step that the next train goes on from: the backend's, where it can tell it, else that of the books."""
    told = await run.told_step()
    return await run.step() if told is None else told


async def _expect_next_train(run: Run, target: int, sent: str) -> None:
    sent += ", then another train"
    groups = await run.groups()
    try:
        result = await run.train(groups)
    except Exception as error:
        got = f"{type(error).__name__}: {error}"
        raise CheckFailed(got, expected="a good end", sent=sent) from error
    expect_equal(run.recorder.last.config.target_step, target, sent=sent)
    expect_equal(result.step, target, sent=sent)


async def _expect_a_clean_failure(stage: Stage, fault: Fault) -> None:
    run = await stage.run()
    step = await run.step()
    await run.checkpoints()  # else there is nothing to see
    await run.fail_next(fault)
    error = await failure_of(run.train())
    sent = f"model.train(groups), while the adapter was made to fail ({fault})"
    expect(error is not None, got="a good end", expected="an exception", sent=sent)
    expect(step + 1 not in await run.checkpoints(), got="N+1", expected="no N+1", sent=sent)
    expect_equal(await run.step(), step, sent=sent)
    await _expect_next_train(run, step + 1, sent)
