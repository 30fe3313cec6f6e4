"""LR: the learning rate is the frontend's, from the first point to the last digit."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from art_conformance.check import FRONTEND_AT_FAULT, GUARDS_THE_FRONTEND, check
from art_conformance.failure import expect, expect_equal
from art_conformance.instruments.differential import LEARNING_RATE, SCALED, SENT, plays
from art_conformance.instruments.faults import failure_of
from art_conformance.verdict import Level

if TYPE_CHECKING:
    from art_conformance.run import Run
    from art_conformance.stage import Stage

_SINGLE_PRECISION = 1e-6
_UNKNOWN_OPTION = "an_option_that_no_backend_knows"
_UNKNOWN: Any = {_UNKNOWN_OPTION: 1}


@check("LR-01", clause="T2", cause="the adapter writes rows of its own into the history")
async def the_scaled_rate_is_the_references(stage: Stage) -> None:
    """With scaling on, the rate that reaches the backend is that of the reference, to the last digit, and no scaling option reaches it."""
    both = await plays(stage)
    got = [train.config.learning_rate for train in both.adapter.trains]
    expected = [train.config.learning_rate for train in both.reference.trains]
    expect_equal(got, expected, sent=SENT)
    expect(got[1] > 1.5 * LEARNING_RATE, got=got[1], expected="a rate that follows", sent=SENT)
    options = [train.dev_config for train in both.adapter.trains]
    expect_equal(options, [{}] * len(options), sent=f"{SENT}, with _config={SCALED!r}")


@check(
    "LR-02",
    clause="T2",
    cause=FRONTEND_AT_FAULT,
    redundant=GUARDS_THE_FRONTEND,
)
async def the_rate_is_as_given_without_scaling(stage: Stage) -> None:
    """With scaling off, or before there are two points to tell a trend from, the rate is as given."""
    first, _, *unscaled = (await plays(stage)).adapter.trains
    rates = [train.config.learning_rate for train in (first, *unscaled)]
    expect_equal(rates, [LEARNING_RATE] * len(rates), sent=SENT)


@check(
    "LR-03",
    clause="T2",
    level=Level.FULL,
    cause="the adapter has a rate of its own, or scales the one it is given once more",
)
async def the_rate_is_handed_on(stage: Stage) -> None:
    """The adapter hands the rate on to its trainer unchanged, also one that the frontend has scaled."""
    run = await stage.run()
    await run.received()  # else there is nothing to see
    await _expect_handed_on(run, 7e-5)
    await _expect_handed_on(run, 7e-5, **SCALED)


@check(
    "LR-04",
    clause="T2",
    level=Level.FULL,
    cause="the adapter has a schedule or a warm-up, or keeps the first rate for good",
)
async def every_rate_is_handed_on(stage: Stage) -> None:
    """Different rates in a row each arrive as given: the adapter has no schedule and no warm-up of its own."""
    run = await stage.run()
    await run.received()
    for learning_rate in (1e-4, 1e-4, 3e-6, 2e-4):
        await _expect_handed_on(run, learning_rate)


@check(
    "LR-05",
    clause="T2",
    level=Level.FULL,
    cause="unknown train options are dropped without a word",
)
async def an_unknown_option_is_told(stage: Stage) -> None:
    """An option that the adapter does not know is refused or warned of by its name, never silently ignored.

    One that is refused never reaches the trainer.
    """
    run = await stage.run()
    num_received = len(await run.received())
    error = await failure_of(run.train(**_UNKNOWN))
    sent = f"model.train(groups, config, _config={_UNKNOWN!r})"
    expected = "an error or a warning that names it"
    if error is None:
        is_told = any(_UNKNOWN_OPTION in record.getMessage() for record in stage.logged)
        expect(is_told, got="not a word", expected=expected, sent=sent)
        return
    message = f"{type(error).__name__}: {error}"
    expect(isinstance(error, Exception), got=message, expected="an Exception", sent=sent)
    expect(_UNKNOWN_OPTION in message, got=message, expected=expected, sent=sent)
    is_kept_back = len(await run.received()) == num_received
    expect(is_kept_back, got="it was trained all the same", expected="no training", sent=sent)


@check(
    "LR-06",
    clause="T2",
    level=Level.FULL,
    cause="the rate has a lower bound or is replaced where it is 0, or the weights that are saved are not those that were trained",
)
async def the_weights_follow_the_rate(stage: Stage) -> None:
    """The weights move with a rate above 0, and not at all with 0.0.

    Weight decay is no excuse: it is part of a step whose size is the rate.
    """
    run = await stage.run()
    # Checkpoint 0 may be the base model, without files of its own.
    start = await run.step() or (await run.train()).step
    await run.train(learning_rate=1e-3)
    await run.train(learning_rate=0.0)
    weights = [await run.weights(step) for step in range(start, start + 3)]
    sent = "model.train(groups, TrainConfig(learning_rate=1e-3)), then with learning_rate=0.0"
    expect(
        weights[1] != weights[0], got="the same weights after 1e-3", expected="others", sent=sent
    )
    expect(weights[2] == weights[1], got="other weights after 0.0", expected="the same", sent=sent)


async def _expect_handed_on(run: Run, learning_rate: float, **options: Any) -> None:
    await run.train(None, learning_rate, **options)
    passed, received = run.recorder.last.config, (await run.received())[-1]
    sent = "model.train(groups, TrainConfig(learning_rate=...)), and a look at the trainer"
    is_close = math.isclose(received.learning_rate, passed.learning_rate, rel_tol=_SINGLE_PRECISION)
    expect(is_close, got=received.learning_rate, expected=repr(passed.learning_rate), sent=sent)
