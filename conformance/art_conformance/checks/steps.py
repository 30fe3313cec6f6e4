"""STEP: which checkpoint a train makes, and which step the model is at.

The frontend keeps the account; a backend that tells a step of its own is evidence, which the frontend follows. So
these checks let it ask once more before they look.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from art_conformance.check import FRONTEND_AT_FAULT, GUARDS_THE_FRONTEND, check
from art_conformance.failure import expect, expect_equal
from art_conformance.instruments.streams import train_past_the_frontend
from art_conformance.verdict import Level

if TYPE_CHECKING:
    import art
    from art_conformance.run import Run
    from art_conformance.stage import Stage

_FAR_STEP = 1_000_000
# As after a crash between the commit and the books.
_AGAIN = "model.train(groups), then _train_model with the same target_step"


# --- the account


@check("STEP-01", clause="T4", cause="`_get_step` counts gradient steps, or lags behind the commit")
async def a_train_is_one_step(stage: Stage) -> None:
    """A train that ends well moves the step by one, however many gradient steps it took."""
    run = await stage.run()
    sent = "model.train(groups) on a batch that can be trained"
    await _expect_one_step(run, await run.groups(), sent)


@check("STEP-02", clause="T6", cause="a train that learns nothing returns early, before it commits")
async def a_train_without_signal_is_a_step(stage: Stage) -> None:
    """A batch without a training signal moves the step by one as well."""
    run = await stage.run()
    sent = "model.train(groups of equal rewards)"
    await _expect_one_step(run, await run.untrainable_groups(), sent)


async def _expect_one_step(run: Run, groups: list[art.TrajectoryGroup], sent: str) -> None:
    """Train, and expect that the step moved by one: as returned, and as told when the backend is asked again."""
    first = await run.step()
    result = await run.train(groups)
    expect_equal(result.step - first, 1, sent=f"{sent}: result.step - N")
    await run.settle()
    expect_equal(await run.step() - first, 1, sent=f"{sent}, register: model.get_step() - N")


@check("STEP-06", clause="steps", cause="`_get_step` tells a number that was kept before the train")
async def steps_go_up_one_by_one(stage: Stage) -> None:
    """Train after train the step goes up by one, and `_get_step` agrees with the books each time."""
    run = await stage.run()
    first = await run.step()
    batches = [await run.groups(), await run.untrainable_groups(), await run.groups()]
    for number, groups in enumerate(batches, start=1):
        await run.train(groups)
        sent = f"model.train, {number} in a row"
        expect_equal(await run.step() - first, number, sent=f"{sent}: model.get_step() - N")
        told = await run.told_step()
        if told is not None:
            expect_equal(told - first, number, sent=f"{sent}: _get_step(model) - N")


@check(
    "STEP-07",
    clause="steps",
    cause=FRONTEND_AT_FAULT,
    redundant=GUARDS_THE_FRONTEND,
)
async def logging_moves_no_step(stage: Stage) -> None:
    """`log` never moves the step, whatever step it is given, and asks nothing of the backend."""
    run = await stage.run()
    first = await run.step()
    calls = len(run.recorder.calls)
    await run.model.log(await run.groups(), split="logged", step=_FAR_STEP)
    await run.model.log(
        metrics={"loss": 0.5, "num_groups_trainable": 1}, split="logged", step=_FAR_STEP
    )
    await run.model.log(await run.groups(), split="logged")
    sent = f"model.log, with step={_FAR_STEP} and without"
    expect_equal(run.recorder.calls[calls:], [], sent=f"{sent}: calls of the backend")
    await run.settle()
    expect_equal(await run.step() - first, 0, sent=f"{sent}, register: by how much the step moved")


@check(
    "STEP-09",
    clause="steps",
    level=Level.FULL,
    needs=("step",),
    cause="None, -1 or an error is given where there is no checkpoint yet",
)
async def a_new_model_is_at_zero(stage: Stage) -> None:
    """A model that was never trained is at step 0, and `_get_step` says so with an int."""
    run = await stage.new_run()
    told: Any = await run.told_step()
    sent = "register(a new model)"
    expect(
        type(told) is int,
        got=f"a {type(told).__name__}",
        expected="an int",
        sent=f"{sent}, _get_step",
    )
    expect_equal(told, 0, sent=f"{sent}, _get_step")
    expect_equal(await run.step(), 0, sent=f"{sent}, model.get_step()")


# --- the checkpoints


@check(
    "STEP-03",
    clause="T4",
    level=Level.FULL,
    cause="the checkpoint is saved after the stream's end, or under a number of the backend's own",
)
async def the_target_is_made(stage: Stage) -> None:
    """When the stream has ended, checkpoint `target_step` exists, and no other one was made."""
    run = await stage.run()
    first = await run.step()
    before = await run.checkpoints()
    await run.train()
    made = sorted(step - first for step in await run.checkpoints() - before)
    expect_equal(made, [1], sent="model.train(groups): checkpoints that were made, less N")


@check(
    "STEP-13",
    clause="T7",
    level=Level.FULL,
    cause="old checkpoints are cleared away by a train; the frontend chooses what is deleted, by `_delete_checkpoint_files`",
)
async def a_train_deletes_nothing(stage: Stage) -> None:
    """A train deletes no checkpoint: which ones go is the frontend's choice."""
    run = await stage.run()
    first = await run.step()
    await run.train()
    before = await run.checkpoints()
    await run.train()
    gone = sorted(step - first for step in before - await run.checkpoints())
    expect_equal(gone, [], sent="model.train(groups) again: checkpoints that are gone, less N")


@check(
    "STEP-10",
    clause="steps",
    level=Level.FULL,
    needs=("listing",),
    cause="directory names are listed as they come: as str, or in the order of text",
)
async def the_listing_is_ascending(stage: Stage) -> None:
    """The listing is of ascending ints, and ends with the step that was just trained."""
    run = await stage.run()
    first = await run.step()
    await run.train()
    await run.train()
    listed: Any = await run.backend._list_checkpoint_steps(run.model)
    sent = "two trains, _list_checkpoint_steps(model)"
    kinds = {type(step).__name__ for step in listed}
    expect(isinstance(listed, list), got=f"a {type(listed).__name__}", expected="a list", sent=sent)
    expect(kinds == {"int"}, got=", ".join(sorted(kinds)) or "nothing", expected="int", sent=sent)
    relative = [step - first for step in listed]
    expect_equal(relative, sorted(set(relative)), sent=f"{sent}: what is listed, less N")
    expect_equal(relative[-2:], [1, 2], sent=f"{sent}: the last two, less N")


# --- the weights


@check(
    "STEP-04",
    clause="T4",
    level=Level.FULL,
    cause="the checkpoint is saved before the optimizer's step, or is a copy of the one before",
)
async def a_train_changes_the_weights(stage: Stage) -> None:
    """Checkpoint N+1 has other weights than checkpoint N, where there was something to learn."""
    run = await stage.run()
    first = await _trained_step(run)
    await run.train()
    is_same = await run.weights(first + 1) == await run.weights(first)
    expect(
        not is_same,
        got="the weights of N",
        expected="other weights in N+1",
        sent="model.train(groups) on a batch that can be trained",
    )


@check(
    "STEP-05",
    clause="T6",
    level=Level.FULL,
    cause="no checkpoint is made, or the optimizer steps on a gradient of zero",
)
async def nothing_to_train_keeps_the_weights(stage: Stage) -> None:
    """With nothing to train, checkpoint N+1 exists and has the weights of N."""
    run = await stage.run()
    first = await _trained_step(run)
    await run.train(await run.untrainable_groups())
    sent = "model.train(groups of equal rewards)"
    made = first + 1 in await run.checkpoints()
    expect(made, got="no checkpoint N+1", expected="checkpoint N+1", sent=sent)
    is_same = await run.weights(first + 1) == await run.weights(first)
    expect(is_same, got="other weights in N+1", expected="the weights of N", sent=sent)


async def _trained_step(run: Run) -> int:
    """Return the step, after a train where it would be 0: the base model need not be a checkpoint."""
    step = await run.step()
    return step if step > 0 else (await run.train()).step


@check(
    "STEP-08", clause="T8", cause="a checkpoint that exists is an error, or a reason to number on"
)
async def an_existing_target_is_no_error(stage: Stage) -> None:
    """A train whose `target_step` exists already ends well, and makes that step."""
    run = await stage.run()
    result = await run.train()
    await train_past_the_frontend(run, result.step)
    await run.settle()
    expect_equal(
        await run.step() - result.step,
        0,
        sent=f"{_AGAIN}, register: by how much the step moved",
    )


@check(
    "STEP-12",
    clause="T8",
    level=Level.FULL,
    cause="a checkpoint that exists is taken for this call's result, and kept",
)
async def an_existing_target_is_replaced(stage: Stage) -> None:
    """A `target_step` that exists already is replaced by this call's result."""
    run = await stage.run()
    result = await run.train()
    before = await run.weights(result.step)
    await train_past_the_frontend(run, result.step, learning_rate=3e-4)
    is_same = await run.weights(result.step) == before
    expect(
        not is_same,
        got="the weights of the first train",
        expected="those of the second",
        sent=f"{_AGAIN}, with another learning rate",
    )
