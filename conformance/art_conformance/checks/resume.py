"""RES: whoever opens a model again goes on where it was."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from art.testing import InMemoryBackend
from art_conformance.check import FRONTEND_AT_FAULT, GUARDS_THE_FRONTEND, check
from art_conformance.checks.retention import appended
from art_conformance.failure import expect, expect_equal
from art_conformance.instruments.faults import Injected, after_the_last_event, failure_of
from art_conformance.instruments.streams import interfering
from art_conformance.verdict import Level

if TYPE_CHECKING:
    from art_conformance.run import Run
    from art_conformance.stage import Stage

_TORN = b'{"step": 7, "torn'


def tells_step(run: Run) -> bool:
    """Whether the backend gives evidence of its step; else the books alone decide."""
    return run.capabilities.step is not None


def booked(run: Run) -> list[int]:
    """Return the steps in the frontend's account, in order; rewinds are passed over."""
    return [entry["step"] for entry in run.ledger() if "step" in entry]


@check("RES-07", clause="steps", cause="register makes a checkpoint each time, or counts")
async def opening_again_moves_nothing(stage: Stage) -> None:
    """Registering a model again, without a train in between, moves neither its step nor its account of steps."""
    run = await stage.run()
    step = (await run.train()).step
    before = booked(run)
    for which in ("a new model object", "another one"):
        again = await stage.new_run(run.model.name)
        sent = f"a train, then register {which} of the same name"
        expect_equal(await again.step() - step, 0, sent=f"{sent}; by how much the step moved")
        expect_equal(booked(run)[len(before) :], [], sent=f"{sent}; new steps in steps.jsonl")


# --- a process that stops between a backend's commit and the books


async def _train_without_books(run: Run) -> None:
    """Train a step that the backend commits, and whose end the frontend does not hear of."""
    with interfering(run, after_the_last_event):
        error = await failure_of(run.train())
    if error is not None and not isinstance(error, Injected):
        raise error


_STOP = "a train whose stream ended, and of which nothing was booked; then a new model object"


@check(
    "RES-03", clause="T4", cause="the checkpoint is finished in the next call, or in the background"
)
async def a_step_that_was_not_booked_is_adopted(stage: Stage) -> None:
    """A step that was committed but not booked is counted once.

    Where the backend tells its step, the model stands at that step when it is registered again; else the step
    is made anew.
    """
    run = await stage.run()
    step = (await run.train()).step
    before = booked(run)
    await _train_without_books(run)
    again = await stage.new_run(run.model.name)
    adopted = 1 if tells_step(run) else 0
    expect_equal(await again.step() - step, adopted, sent=f"{_STOP}; by how much the step moved")
    await again.train()
    new = [booked - step for booked in booked(run)[len(before) :]]
    expected = list(range(1, adopted + 2))
    expect_equal(new, expected, sent=f"{_STOP}, and a train; new steps in steps.jsonl, from N")


@check("RES-09", clause="T8", cause="a checkpoint that exists already is taken for an error")
async def a_step_that_was_not_booked_can_be_made_anew(stage: Stage) -> None:
    """Where the books alone decide, a step that was committed but not booked is trained again."""
    run = await stage.run()
    step = (await run.train()).step
    before, groups = booked(run), await run.groups()
    await _train_without_books(run)
    again = await stage.new_run(run.model.name, only_two_methods=True)
    result = await again.train(groups)
    sent = f"{_STOP} that is shown the two methods alone, and a train"
    expect_equal(result.step - step, 1, sent=f"{sent}; the train's step - N")
    new = [booked - step for booked in booked(run)[len(before) :]]
    expect_equal(new, [1], sent=f"{sent}; new steps in steps.jsonl, from N")


@check("RES-06", clause="books", cause=FRONTEND_AT_FAULT, redundant=GUARDS_THE_FRONTEND)
async def torn_lines_do_not_stop_a_train(stage: Stage) -> None:
    """A last line that was torn, in the history and in the account of steps, does not stop the next train."""
    run = await stage.run()
    step = (await run.train()).step
    files = [run.directory / name for name in ("history.jsonl", "steps.jsonl")]
    with appended(_TORN, *files):
        again = await stage.new_run(run.model.name)
        result = await again.train()
        last_lines = [file.read_text().splitlines()[-1] for file in files]
    sent = "half a line at the end of history.jsonl and steps.jsonl, then a train by a new model object"
    expect_equal(result.step - step, 1, sent=f"{sent}; the train's step - N")
    last = [json.loads(line)["step"] - step for line in last_lines]
    expect_equal(last, [1, 1], sent=f"{sent}; the step in the last lines - N")


# --- another backend in between


@check(
    "RES-08",
    clause="steps",
    level=Level.FULL,
    needs=("step",),
    cause=FRONTEND_AT_FAULT,
    redundant=GUARDS_THE_FRONTEND,
)
async def another_backend_in_between(stage: Stage) -> None:
    """A backend that is behind takes over with a warning; back at the first one, training goes on from its step."""
    run = await stage.run()
    step = (await run.train()).step
    sent = "register with a backend that has no checkpoint yet"
    other = stage.model(run.model.name)
    await other.register(InMemoryBackend.supporting("step"))
    is_told = any(f"step {step} " in warning for warning in stage.warnings())
    expect(is_told, got="no such warning", expected="a warning that names step N", sent=sent)
    expect_equal((await other.train(await run.groups())).step, 1, sent=f"{sent}, and a train")
    await other.close()
    again = await stage.new_run(run.model.name)
    sent = f"{sent}, and a train; then register with the first backend again"
    expect_equal(await again.step() - step, 0, sent=f"{sent}; by how much the step moved")
    expect_equal((await again.train()).step - step, 1, sent=f"{sent}, and a train; its step - N")
