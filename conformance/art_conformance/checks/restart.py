"""RES, continued: a backend that is made anew on the same state, after a close and after a kill."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from art_conformance.check import check
from art_conformance.checks.resume import booked, tells_step
from art_conformance.failure import SetupError, Unobservable, expect, expect_equal
from art_conformance.instruments.child import killed_child
from art_conformance.stage import close_backend, once_a_stage
from art_conformance.verdict import Level

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from art_conformance.instruments.child import KilledAt
    from art_conformance.stage import Stage

_RESTART = "a train; then a new backend object and a new model object on the same directories"
_KILLED = (
    "two trains in another process, killed {}; then a new backend and model on its directories"
)
_KILLED_LATE = _KILLED.format("at the end of the second stream")
_KILLED_EARLY = _KILLED.format("at the first event of the second")


async def _answer(question: Awaitable[Any]) -> Any:
    """Return what a look inside shows, or the error that says why it shows nothing, for `_told`."""
    try:
        return await question
    except (Unobservable, SetupError) as error:
        return error


def _told(answer: Any) -> Any:
    """Return what `_answer` brought, or raise the error that it kept."""
    if isinstance(answer, Exception):
        raise answer
    return answer


# --- a restart


@dataclass(frozen=True)
class _Restarted:
    """What was seen before and after a restart; see `_answer` about lists of two."""

    step_before: int
    step_after: int
    checkpoints: list[Any]
    weights_of_latest: list[Any]
    next_target: int
    next_step: int


@once_a_stage
async def _after_a_restart(stage: Stage) -> _Restarted:
    old = await stage.run()
    latest = (await old.train()).step
    checkpoints, weights = [await _answer(old.checkpoints())], [await _answer(old.weights(latest))]
    await stage.restart()
    new = await stage.new_run(old.model.name)
    checkpoints.append(await _answer(new.checkpoints()))
    weights.append(await _answer(new.weights(latest)))
    step = await new.step()
    next_step = (await new.train()).step
    target = new.recorder.last.config.target_step or 0
    return _Restarted(latest, step, checkpoints, weights, target, next_step)


@check(
    "RES-01",
    clause="T4",
    renews=True,
    cause="the step is kept in memory, or checkpoints are on no durable storage",
)
async def a_restart_goes_on_at_the_next_step(stage: Stage) -> None:
    """After a restart a model stands at the step that was trained last, and the next train makes the one after."""
    seen = await _after_a_restart(stage)
    step = seen.step_before
    expect_equal(seen.step_after - step, 0, sent=f"{_RESTART}; by how much the step moved")
    expect_equal(seen.next_target - step, 1, sent=f"{_RESTART}, and a train; target_step - N")
    expect_equal(seen.next_step - step, 1, sent=f"{_RESTART}, and a train; its step - N")


@check(
    "RES-02",
    clause="T4",
    level=Level.FULL,
    renews=True,
    cause="a start or a close makes checkpoints anew, or clears them away",
)
async def a_restart_keeps_checkpoints(stage: Stage) -> None:
    """After a restart the same checkpoints exist as before, and the latest has the same weights."""
    seen = await _after_a_restart(stage)
    before, after = map(_told, seen.checkpoints)
    expect_equal(sorted(after), sorted(before), sent=f"{_RESTART}; checkpoints")
    before, after = map(_told, seen.weights_of_latest)
    sent = f"{_RESTART}; weights of the latest checkpoint"
    expect(before == after, got="other weights", expected="the same as before", sent=sent)


# --- a kill


@dataclass(frozen=True)
class _Resumed:
    """What a new process found after another one was killed in its second train, and how it went on."""

    tells_step: bool
    step: int
    checkpoints: Any
    weights: dict[int, Any]
    next_step: int
    booked: list[int]


async def _after_a_kill(stage: Stage, killed_at: KilledAt) -> _Resumed:
    name = f"killed-at-{killed_at}"
    async with killed_child(stage, name, killed_at):
        backend = stage.new_backend(name)
        try:
            run = await stage.new_run(name, backend=backend)
            step, checkpoints = await run.step(), await _answer(run.checkpoints())
            found = () if isinstance(checkpoints, Exception) else sorted(checkpoints)
            weights = {number: await _answer(run.weights(number)) for number in found}
            next_step = (await run.train()).step
            return _Resumed(tells_step(run), step, checkpoints, weights, next_step, booked(run))
        finally:
            await close_backend(backend)


@once_a_stage
async def _after_a_kill_at_the_end(stage: Stage) -> _Resumed:
    return await _after_a_kill(stage, "end")


@once_a_stage
async def _after_a_kill_in_the_middle(stage: Stage) -> _Resumed:
    return await _after_a_kill(stage, "first-event")


@check("RES-04", clause="T4", cause="the checkpoint is not on durable storage when the stream ends")
async def a_kill_at_the_end_counts_no_step_twice(stage: Stage) -> None:
    """When a process is killed between the end of a stream and the books, the step is counted once.

    Where the backend tells its step, a new process stands at the step that was committed; else it makes it anew.
    """
    seen = await _after_a_kill_at_the_end(stage)
    step = 2 if seen.tells_step else 1
    expect_equal(seen.step, step, sent=f"{_KILLED_LATE}; its step")
    sent = f"{_KILLED_LATE}, and a train; steps in steps.jsonl"
    expect_equal(seen.booked, list(range(1, step + 2)), sent=sent)


@check(
    "RES-05",
    clause="T5",
    cause="what a killed train leaves is taken for a checkpoint, or locks the model out",
)
async def a_kill_in_the_middle_leaves_a_clean_start(stage: Stage) -> None:
    """After a process was killed in the middle of a stream, a new one trains on and counts no step twice.

    It goes on from checkpoint N; or from N+1 where the backend tells its step, and work that went on elsewhere
    has finished that checkpoint meanwhile.
    """
    seen = await _after_a_kill_in_the_middle(stage)
    sent = f"{_KILLED_EARLY}, and a train; steps in steps.jsonl"
    expect_equal(seen.booked, list(range(1, seen.next_step + 1)), sent=sent)
    possible = [2, 3] if seen.tells_step else [2]
    got, expected = f"step {seen.next_step}", f"one of the steps {possible}"
    sent = f"{_KILLED_EARLY}, and a train"
    expect(seen.next_step in possible, got=got, expected=expected, sent=sent)


@check(
    "RES-10",
    clause="T4",
    level=Level.FULL,
    cause="the checkpoint is not on durable storage when the stream ends",
)
async def a_kill_at_the_end_keeps_the_checkpoint(stage: Stage) -> None:
    """A checkpoint exists after its process was killed at the end of the stream."""
    seen = await _after_a_kill_at_the_end(stage)
    found = _told(seen.checkpoints)
    got = f"checkpoints {sorted(found)}"
    expect(2 in found, got=got, expected="checkpoint 2 among them", sent=_KILLED_LATE)


@check("RES-11", clause="T5", level=Level.FULL, cause="the checkpoint is there before it is whole")
async def a_kill_in_the_middle_leaves_no_half_checkpoint(stage: Stage) -> None:
    """After its process was killed in the middle of the stream, no checkpoint `target_step` exists.

    Work that goes on elsewhere may finish it meanwhile; then its weights are not those of checkpoint N.
    """
    seen = await _after_a_kill_in_the_middle(stage)
    found = _told(seen.checkpoints)
    got = f"checkpoints {sorted(found)}"
    expect(1 in found, got=got, expected="checkpoint 1 among them", sent=_KILLED_EARLY)
    if 2 in found:
        is_trained = _told(seen.weights[1]) != _told(seen.weights[2])
        got = f"{got}, of which 2 has the weights of 1"
        expect(is_trained, got=got, expected="no checkpoint 2, or a whole one", sent=_KILLED_EARLY)
