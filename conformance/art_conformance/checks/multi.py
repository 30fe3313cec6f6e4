"""MULTI: models of one backend that share nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from art_conformance.check import check
from art_conformance.failure import Unobservable, expect, expect_equal
from art_conformance.instruments.streams import weights_of_a_train
from art_conformance.verdict import Level

if TYPE_CHECKING:
    from pathlib import Path

    from art_conformance.run import Run
    from art_conformance.stage import Stage

_LONG = 200  # bytes of a name in a path: as many as the frontend takes
_ENCODED = 8  # bytes more, at most, where its unsafe characters are percent-encoded
_ODD = ".\u00c9t\u00e9 \u6a21\u578b: a/b "


async def twin(stage: Stage) -> Run:
    """Return a run of another model: one of the same name as the shared one, in another project."""
    run = await stage.run()
    return await stage.new_run(run.model.name, project="another project")


@check(
    "MULTI-01",
    clause="T7",
    cause="what is kept for a model is found by its name, without the project",
)
async def projects_keep_their_own_steps(stage: Stage) -> None:
    """Two models of one name, in two projects, have their own steps."""
    run, other = await stage.run(), await twin(stage)
    step, others_step = await run.step(), await other.step()
    sent = "two models of one name in two projects, trained in turn"
    for number in (1, 2):
        expect_equal((await run.train()).step - step, number, sent=f"{sent}; steps of the first")
        result = await other.train()
        expect_equal(result.step - others_step, number, sent=f"{sent}; steps of the second")


@check(
    "MULTI-02",
    clause="names",
    cause="a name is used as a file name or in an address as it is, is folded, or is cut",
)
async def odd_names_train(stage: Stage) -> None:
    """Models with odd names train, each from its own step.

    The names are as long as they may be, begin with a dot, and have spaces, a colon, a slash and letters of other
    scripts in them. They differ in case alone, or in `%2F` for the slash.
    """
    runs = [await stage.new_run(name) for name in _odd_names(stage)]
    first = [await run.step() for run in runs]
    for run, step in zip(runs, first, strict=True):
        sent = f"trained the models of odd names in turn; steps of {_short(run)}"
        expect_equal((await run.train()).step - step, 1, sent=sent)


@check(
    "MULTI-03",
    clause="T2",
    level=Level.FULL,
    cause="the optimizer of the first model, or of its first train, is kept for all",
)
async def models_in_turn_keep_their_learning_rates(stage: Stage) -> None:
    """When two models are trained in turn, each train gets its own learning rate and target step."""
    runs = await stage.run(), await twin(stage)
    before = [len(await run.received()) for run in runs]
    first = [await run.step() for run in runs]
    rates = [[1e-4, 2e-4], [3e-4, 4e-4]]
    for turn in (0, 1):
        for run, own in zip(runs, rates, strict=True):
            await run.train(learning_rate=own[turn])
    for run, own, number, step in zip(runs, rates, before, first, strict=True):
        got = [(r.learning_rate, r.target_step - step) for r in (await run.received())[number:]]
        expected = [(own[0], 1), (own[1], 2)]
        expect_equal(
            got, expected, sent="trained two models in turn; (learning rate, step - N) of one"
        )


@check(
    "MULTI-04",
    clause="T7",
    level=Level.FULL,
    cause="a name is folded, cut or decoded on the way to where checkpoints are kept",
)
async def odd_names_share_no_checkpoint(stage: Stage) -> None:
    """A train of a model with an odd name makes a checkpoint of that model, and of no other."""
    runs = [await stage.new_run(name) for name in _odd_names(stage)]
    for run in runs:
        before = [await other.checkpoints() for other in runs]
        result = await run.train()
        for other, had in zip(runs, before, strict=True):
            new = {result.step} if other is run else set()
            sent = f"trained {_short(run)}; new checkpoints of {_short(other)}"
            expect_equal(await other.checkpoints() - had, new, sent=sent)


@check(
    "MULTI-05",
    clause="T2",
    level=Level.FULL,
    cause="the weights in memory are taken for the model's, though another one was trained last",
)
async def models_in_turn_keep_their_weights(stage: Stage) -> None:
    """Training another model changes neither a model's checkpoints nor what its next train starts from.

    Compared by the weights that the same batch gives from the same checkpoint; where these differ without another
    model's train, nothing can be seen.
    """
    run, other = await stage.run(), await twin(stage)
    step = (await run.train()).step
    latest = await run.weights(step)
    following = await weights_of_a_train(run, step + 1)
    if await weights_of_a_train(run, step + 1) != following:
        raise Unobservable("the same batch gives other weights each time")
    await other.train(await other.groups(), learning_rate=1e-3)
    sent = "trained a model to step N, then another model, and the first one from N again"
    is_same = await run.weights(step) == latest
    expect(is_same, got="others", expected="the weights of N as they were", sent=sent)
    is_same = await weights_of_a_train(run, step + 1) == following
    expect(is_same, got="others", expected="the weights that this batch gives from N", sent=sent)


def _odd_names(stage: Stage) -> list[str]:
    """Return a few names that are as odd as several: a real backend needs long to start each."""
    padding = _LONG - len(_ODD.encode()) - _ENCODED
    name = _ODD + "x" * padding
    return [
        name,
        name.replace("/", "%2F"),
        *([] if _folds_case(stage.workspace) else [name.upper()]),
    ]


def _folds_case(directory: Path) -> bool:
    """Whether two names of files that differ in case only are one: then the frontend cannot tell them apart."""
    (directory / "case").touch()
    return (directory / "CASE").exists()


def _short(run: Run) -> str:
    return repr(f"{run.model.name[:16]}...")
