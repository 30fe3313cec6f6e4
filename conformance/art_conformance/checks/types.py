"""TYPES: values and metrics, and what the frontend makes of bad ones.

A backend should send none (YIELD-02, YIELD-03). Should one slip through, the train that brought it is not lost: the
bad value is left out, the rest is kept. That is the frontend's part; it is tried here on top of the adapter.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import art
from art_conformance.check import FRONTEND_AT_FAULT, GUARDS_THE_FRONTEND, check
from art_conformance.checks.yielding import RESERVED
from art_conformance.failure import expect, expect_equal
from art_conformance.instruments.streams import interfering, replaced_by

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from art_conformance.stage import Stage

_FRONTENDS_OWN = {"num_groups_submitted", "num_groups_trainable", "learning_rate"}


# --- what a train returns


@check("TYPES-01", clause="books", cause=FRONTEND_AT_FAULT, redundant=GUARDS_THE_FRONTEND)
async def results_are_plain(stage: Stage) -> None:
    """A train returns an int step and metrics that are floats, and its row in the history is the same."""
    run = await stage.run()
    result = await run.train()
    sent = "model.train(groups)"
    expect(
        type(result) is art.TrainResult and type(result.step) is int,
        got=f"a {type(result).__name__} of a {type(result.step).__name__}",
        expected="a TrainResult of an int",
        sent=sent,
    )
    expect_equal({type(v).__name__ for v in result.metrics.values()}, {"float"}, sent=sent)
    row = run.rows()[-1]
    expect_equal(row["step"], result.step, sent=f"{sent}: the step of the history's last row")
    expect_equal(_metrics(row), result.metrics, sent=f"{sent}: the history's last row")


@check("TYPES-02", clause="books", cause=FRONTEND_AT_FAULT, redundant=GUARDS_THE_FRONTEND)
async def both_spellings_return_the_same(stage: Stage) -> None:
    """`art.backend_train` and `model.train` return the same kind of thing; the former writes no row."""
    run = await stage.run()
    ours = await run.train()
    rows = run.rows()
    theirs = await art.backend_train(run.model, await run.groups(), learning_rate=1e-4)
    sent = "model.train(groups), then art.backend_train(model, groups)"
    expect_equal(type(theirs), type(ours), sent=f"{sent}: type of the result")
    expect_equal(theirs.step - ours.step, 1, sent=f"{sent}: by how much the step moved")
    expect_equal({type(v).__name__ for v in theirs.metrics.values()}, {"float"}, sent=sent)
    for name in sorted(_FRONTENDS_OWN):
        expect_equal(theirs.metrics.get(name), ours.metrics.get(name), sent=f"{sent}: {name}")
    expect_equal(len(run.rows()) - len(rows), 0, sent=f"{sent}: rows that the second one wrote")


@check(
    "TYPES-03", clause="T1", cause="a reward is sent on, or checked, as a float and nothing else"
)
async def whole_rewards_are_numbers(stage: Stage) -> None:
    """Rewards that are an int or a bool train as the floats that equal them.

    A script that sets `trajectory.reward = answer == right` sends such.
    """
    run = await stage.run()
    groups = await run.groups()
    rewards: tuple[Any, ...] = (True, 0, False, 1)
    for group in groups:
        for i, trajectory in enumerate(group.trajectories):
            trajectory.reward = rewards[i % len(rewards)]
    await run.train(groups)
    expect(
        run.recorder.last.events,
        got="no event",
        expected="events as with 1.0 and 0.0",
        sent="model.train(groups with rewards True, 0, False, 1)",
    )


# --- odd events, in the place of the adapter's own


@check("TYPES-04", clause="T3", cause=FRONTEND_AT_FAULT, redundant=GUARDS_THE_FRONTEND)
async def values_that_are_no_numbers_are_left_out(stage: Stage) -> None:
    """Values of an event that are not finite real numbers are left out, with one warning."""
    values: dict[str, Any] = {
        "nan": float("nan"),
        "infinity": float("inf"),
        "minus_infinity": float("-inf"),
        "text": "0.5",
        "none": None,
        "list": [0.5],
        "complex": 1j,
        "huge": 10**400,
    }
    sent = f"events with {', '.join(values)} among good values"
    kept = await _kept(stage, [{**values, "good": 0.5}, {"good": 1.5}], sent)
    expect_equal(kept, {"good": 1.0}, sent=f"{sent}: the row")
    _expect_warnings(stage, 1, sent)


@check("TYPES-05", clause="T3", cause=FRONTEND_AT_FAULT, redundant=GUARDS_THE_FRONTEND)
async def numbers_of_other_types_become_floats(stage: Stage) -> None:
    """Bools, ints, fractions and scalars like those of numpy in an event become floats."""
    values = {"bool": True, "int": 3, "fraction": Fraction(1, 4), "scalar": _Scalar()}
    sent = f"an event with {', '.join(values)}"
    kept = await _kept(stage, [values], sent)
    expected = {"bool": 1.0, "int": 3.0, "fraction": 0.25, "scalar": 2.5}
    expect_equal(kept, expected, sent=f"{sent}: the row")
    _expect_warnings(stage, 0, sent)


class _Scalar:
    """A scalar as numpy and torch have them."""

    shape = ()

    def item(self) -> float:
        return 2.5


@check("TYPES-06", clause="T3", cause=FRONTEND_AT_FAULT, redundant=GUARDS_THE_FRONTEND)
async def names_that_are_not_plain_are_left_out(stage: Stage) -> None:
    """Names in an event that are reserved, have a `/` or are not str are left out, with one warning."""
    names: list[Any] = [*RESERVED, "train/loss", "/", 7, None]
    sent = f"an event with the names {', '.join(map(str, names))}"
    run = await stage.run()
    kept = await _kept(stage, [dict.fromkeys(names, 77.0) | {"good": 0.5}], sent)
    expect_equal(kept, {"good": 0.5}, sent=f"{sent}: the row")
    rate = run.rows()[-1]["train/learning_rate"]
    expect_equal(rate, 1e-4, sent=f"{sent}: the learning rate in the row")
    _expect_warnings(stage, 1, sent)


@check("TYPES-07", clause="T3", cause=FRONTEND_AT_FAULT, redundant=GUARDS_THE_FRONTEND)
async def events_that_are_no_mappings_are_left_out(stage: Stage) -> None:
    """Events that are not mappings are left out, with one warning."""
    sent = "the events None, 0.5, a list of pairs, and a good one"
    kept = await _kept(stage, [None, 0.5, [("bad", 0.5)], {"good": 0.5}], sent)
    expect_equal(kept, {"good": 0.5}, sent=f"{sent}: the row")
    _expect_warnings(stage, 1, sent)


@check("TYPES-08", clause="T3", cause=FRONTEND_AT_FAULT, redundant=GUARDS_THE_FRONTEND)
async def one_dict_for_all_events_is_read_each_time(stage: Stage) -> None:
    """Where one dict is filled again for each event, every filling counts, and later changes do not."""

    def refilled() -> Iterator[dict[str, float]]:
        event: dict[str, float] = {}
        for value in (1.0, 2.0, 6.0):
            event.update(good=value, num_good=value)
            yield event
        event.clear()

    sent = "one dict that is filled with 1, 2 and 6"
    kept = await _kept(stage, refilled(), sent)
    expect_equal(kept, {"good": 3.0, "num_good": 9.0}, sent=f"{sent}: the row")


@check("TYPES-09", clause="T3", cause=FRONTEND_AT_FAULT, redundant=GUARDS_THE_FRONTEND)
async def counts_are_summed_and_others_averaged(stage: Stage) -> None:
    """Names `num_*` are summed over the stream, others averaged over the events that have them.

    `num_gradient_steps` is not kept: it is there to show progress.
    """
    first = {"num_seen": 2, "loss": 1.0, "num_gradient_steps": 3}
    events = [first, {"num_seen": 3, "num_gradient_steps": 3}, {"loss": 2.0}]
    sent = f"the events {events}"
    kept = await _kept(stage, events, sent)
    expect_equal(kept, {"num_seen": 5.0, "loss": 1.5}, sent=f"{sent}: the row")


@check("TYPES-10", clause="T3", cause=FRONTEND_AT_FAULT, redundant=GUARDS_THE_FRONTEND)
async def values_beyond_the_range_of_floats(stage: Stage) -> None:
    """A sum that is too large for a float is left out, with one warning; a mean of such values is not."""
    sent = "two events of 1e308"
    kept = await _kept(stage, [{"num_large": 1e308, "large": 1e308}] * 2, sent)
    expect_equal(kept, {"large": 1e308}, sent=f"{sent}: the row")
    _expect_warnings(stage, 1, sent)


@check("TYPES-11", clause="T3", cause=FRONTEND_AT_FAULT, redundant=GUARDS_THE_FRONTEND)
async def a_stream_without_events_is_a_row(stage: Stage) -> None:
    """A stream without events still makes a row, with the frontend's own metrics."""
    sent = "a stream without events"
    expect_equal(await _kept(stage, [], sent), {}, sent=f"{sent}: the row, less the frontend's own")
    _expect_warnings(stage, 0, sent)


@check("TYPES-12", clause="T3", cause=FRONTEND_AT_FAULT, redundant=GUARDS_THE_FRONTEND)
async def ten_thousand_names(stage: Stage) -> None:
    """An event of 10,000 names is kept whole."""
    event = {f"m{i}": float(i) for i in range(10_000)}
    sent = "an event of 10,000 names"
    expect_equal(await _kept(stage, [event], sent), event, sent=f"{sent}: the row")


async def _kept(stage: Stage, events: Iterable[Any], sent: str) -> dict[str, float]:
    """Train with these events in the place of the adapter's; return what the row keeps of them.

    A look is taken that all else is as after any train.
    """
    run = await stage.run()
    first, rows = await run.step(), len(run.rows())
    with interfering(run, replaced_by(events)):
        result = await run.train()
    expect_equal(result.step - first, 1, sent=f"{sent}: result.step - N")
    expect_equal(await run.step() - first, 1, sent=f"{sent}: model.get_step() - N")
    new = run.rows()[rows:]
    expect_equal([row["step"] - first for row in new], [0, 1], sent=f"{sent}: rows' steps, less N")
    metrics = _metrics(new[-1])
    expect_equal(metrics, result.metrics, sent=f"{sent}: the row, beside result.metrics")
    missing = sorted(_FRONTENDS_OWN - set(metrics))
    expect_equal(missing, [], sent=f"{sent}: what the row lacks of the frontend's own metrics")
    return {name: value for name, value in metrics.items() if name not in _FRONTENDS_OWN}


def _metrics(row: dict[str, Any]) -> dict[str, float]:
    """Return the metrics of a row of split "train", by plain name."""
    return {name.removeprefix("train/"): value for name, value in row.items() if "/" in name}


def _expect_warnings(stage: Stage, number: int, sent: str) -> None:
    """Look how often the frontend warned during the check."""
    warnings = stage.warnings()
    got = f"{len(warnings)}: {' / '.join(warnings)}"
    expect(len(warnings) == number, got=got, expected=f"{number} warnings", sent=sent)
