"""YIELD: what a stream of training brings."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from numbers import Real
from typing import TYPE_CHECKING, Any

import art
from art.adapter_kit.advantages import is_trainable
from art_conformance.check import check
from art_conformance.failure import Unobservable, expect, expect_equal
from art_conformance.instruments.streams import call_train, interfering
from art_conformance.verdict import Level

if TYPE_CHECKING:
    from art_conformance.recorder import RecordedTrain
    from art_conformance.run import Run
    from art_conformance.stage import Stage

RESERVED = (
    "step",
    "policy_step",
    "reward",
    "reward_std_dev",
    "recorded_at",
    "training_step",
    "learning_rate",
)
"""Names of metrics that are the frontend's (T3)."""

_TRAIN = "model.train(groups) on a batch that can be trained"

# How long a backend may take to list its checkpoints while it trains.
_LISTING_S = 5.0
# How long the slow consumer takes for one event.
_SLOW_S = 0.05


# --- the events


@check("YIELD-01", clause="T1", cause="the stream yields nothing, or yields objects of its own")
async def yields_mappings(stage: Stage) -> None:
    """A batch that can be trained yields at least one event, and every event is a mapping with str keys."""
    for train in await _trains(await stage.run()):
        if train.ended and any(map(is_trainable, train.groups)):
            expect(
                train.events, got="none", expected="an event for each gradient step", sent=_TRAIN
            )
        for event in train.events:
            is_mapping = isinstance(event, Mapping)
            expect(is_mapping, got=f"a {type(event).__name__}", expected="a dict", sent=_TRAIN)
            others = [name for name in event if not isinstance(name, str)]
            expect(
                not others, got=f"the names {others}", expected="names that are str", sent=_TRAIN
            )


@check(
    "YIELD-02", clause="T3", cause="names are sent as they are logged, with `train/` before them"
)
async def names_are_plain(stage: Stage) -> None:
    """Metric names are plain: no split prefix, no `/`, and none that is reserved for the frontend."""
    for train in await _trains(await stage.run()):
        bad = {
            name
            for event in _mappings(train)
            for name in event
            if isinstance(name, str) and ("/" in name or name in RESERVED)
        }
        expected = f"names without `/`, none of {', '.join(RESERVED)}"
        expect(not bad, got=", ".join(sorted(bad)), expected=expected, sent=_TRAIN)


@check(
    "YIELD-03",
    clause="T3",
    cause="a tensor, a flag or a loss that is not a number is passed on; send float(value), or leave it out",
)
async def values_are_finite_numbers(stage: Stage) -> None:
    """Metric values are finite real numbers.

    An int or a float, also one of numpy; no bool, str or None, no tensor, neither NaN nor infinity, and no int
    that is too large for a float.
    """
    for train in await _trains(await stage.run()):
        bad = {
            f"{name!r}: {problem}"
            for event in _mappings(train)
            for name, value in event.items()
            if (problem := _problem(value)) is not None
        }
        expect(not bad, got="; ".join(sorted(bad)), expected="finite int or float", sent=_TRAIN)


def _problem(value: object) -> str | None:
    if isinstance(value, bool) or not isinstance(value, Real):
        return f"a {type(value).__name__}"
    try:
        number = float(value)
    except OverflowError:
        return "an int too large for a float"
    return None if math.isfinite(number) else str(number)


@check("YIELD-04", clause="T3", cause="it counts what is left, or micro-batches, or is off by one")
async def gradient_steps_are_counted(stage: Stage) -> None:
    """`num_gradient_steps`, where an event has it, is the number of events that come."""
    for train in await _trains(await stage.run()):
        if train.ended:
            told = [e["num_gradient_steps"] for e in _mappings(train) if "num_gradient_steps" in e]
            expect_equal(
                told,
                [len(train.events)] * len(told),
                sent=f"{_TRAIN}: num_gradient_steps of the events of one call",
            )


@check(
    "YIELD-07",
    clause="T1",
    cause="one dict is filled again for each step, or changed after it was sent",
)
async def events_are_left_alone(stage: Stage) -> None:
    """An event is a dict of its own: it is neither changed nor sent again once it was yielded."""
    for train in await _trains(await stage.run()):
        expect_equal(
            len({id(event) for event in train.events}),
            len(train.events),
            sent=f"{_TRAIN}: number of different objects among the events",
        )
        for event, copy in zip(train.events, train.copies, strict=True):
            if copy is not None:
                expect_equal(dict(event), copy, sent=f"{_TRAIN}: an event, after the stream's end")


async def _trains(run: Run) -> list[RecordedTrain]:
    """Return all trains of the shared model so far, at least one of them on a batch that can be trained."""
    if not any(
        train.ended and any(map(is_trainable, train.groups)) for train in run.recorder.trains
    ):
        await run.train()
    return run.recorder.trains


def _mappings(train: RecordedTrain) -> list[Mapping[Any, Any]]:
    return [event for event in train.events if isinstance(event, Mapping)]


# --- batches


@check(
    "YIELD-05",
    clause="T6",
    cause="it trains on advantages that are all zero, or fails on an empty batch",
)
async def nothing_to_train_gives_no_event(stage: Stage) -> None:
    """With nothing that can be trained the stream ends well, without an event."""
    run = await stage.run()
    groups = await run.untrainable_groups()
    await run.train([*groups, *_without_signal(groups)])
    expect_equal(
        len(run.recorder.last.events),
        0,
        sent="model.train(groups of equal rewards, of one rollout, of none, of exceptions): number of events",
    )


@check(
    "YIELD-06",
    clause="T6",
    cause="the mean of an empty group, or the spread of one rollout, is taken",
)
async def odd_groups_are_tolerated(stage: Stage) -> None:
    """Exceptions in a group, and groups of one rollout or none, do not keep the rest from being trained."""
    run = await stage.run()
    groups = await run.groups()
    mixed = [art.TrajectoryGroup([*group.trajectories, TimeoutError("late")]) for group in groups]
    odd = _without_signal(groups)
    await run.train([odd[0], *mixed, *odd[1:]])
    expect(
        run.recorder.last.events,
        got="no event",
        expected="events as without the odd groups",
        sent="model.train(groups that can be trained, among groups of one rollout, of none, of exceptions)",
    )


def _without_signal(groups: list[art.TrajectoryGroup]) -> list[art.TrajectoryGroup]:
    """Return a group of none, one of exceptions alone, and one of one rollout."""
    one = next(trajectory for group in groups for trajectory in group.trajectories)
    return [
        art.TrajectoryGroup([]),
        art.TrajectoryGroup([TimeoutError("late"), ValueError("odd")]),
        art.TrajectoryGroup([one.model_copy(deep=True)]),
    ]


# --- the stream


@check(
    "YIELD-08",
    clause="T1",
    level=Level.FULL,
    cause="events are collected, and sent when all is done",
)
async def events_come_while_training_goes_on(stage: Stage) -> None:
    """The first of several events comes before the checkpoint is committed."""
    run = await stage.run()
    target = await run.step() + 1
    await run.checkpoints()  # is told here where it cannot be seen, not in the middle of a train
    seen: list[set[int]] = []

    async def looking(stream: Any) -> AsyncIterator[Any]:
        async with aclosing(stream):
            async for event in stream:
                if not seen:
                    seen.append(await _checkpoints_meanwhile(run))
                yield event

    with interfering(run, looking):
        await run.train()
    events = _mappings(run.recorder.last)
    if len(events) == 1:
        if events[0].get("num_gradient_steps") == 1:
            return
        raise Unobservable("the batch makes one event only; make_groups can return a larger one")
    expect(
        seen and target not in seen[0],
        got="checkpoint N+1 is there already",
        expected="no checkpoint N+1 before the last event",
        sent=f"{_TRAIN}, and looked for checkpoints at the first of {len(events)} events",
    )


async def _checkpoints_meanwhile(run: Run) -> set[int]:
    try:
        async with asyncio.timeout(_LISTING_S):
            return await run.checkpoints()
    except TimeoutError:
        raise Unobservable("checkpoints cannot be looked for while a train goes on") from None


@check("YIELD-09", clause="T1", cause="a bounded queue drops events that are not taken at once")
async def a_slow_consumer_misses_nothing(stage: Stage) -> None:
    """A consumer that takes the events slowly gets as many as one that takes them at once."""
    run = await stage.run()

    async def slowly(stream: Any) -> AsyncIterator[Any]:
        async with aclosing(stream):
            async for event in stream:
                await asyncio.sleep(_SLOW_S)
                yield event

    await run.train()
    expected = len(run.recorder.last.events)
    with interfering(run, slowly):
        await run.train()
    expect_equal(
        len(run.recorder.last.events),
        expected,
        sent="the same batch twice, the second time with a pause at each event: number of events",
    )


@check(
    "YIELD-10", clause="T1", cause="the iterator's `__anext__` starts over, or waits, after the end"
)
async def the_end_is_the_end(stage: Stage) -> None:
    """A stream that has ended stays ended, however often it is asked."""
    run = await stage.run()
    stream = call_train(run, await run.step() + 1, await run.groups())
    async for _ in stream:
        pass
    more = [event for _ in range(3) if (event := await anext(stream, None)) is not None]
    expect_equal(
        len(more), 0, sent="anext(stream) three times after its end: number of further events"
    )


@check("YIELD-11", clause="T1", cause="`verbose` is taken for something else than more log lines")
async def verbose_changes_nothing(stage: Stage) -> None:
    """`verbose=True` asks for more log lines: events and step are those of any other train."""
    run = await stage.run()
    first = await run.step()
    config = art.TrainConfig(learning_rate=1e-4)
    counts = []
    for verbose in (False, True):
        await run.model.train(await run.groups(), config, verbose=verbose)
        counts.append(len(run.recorder.last.events))
    await run.settle()
    sent = "the same batch twice, the second time with verbose=True"
    expect_equal(counts[1], counts[0], sent=f"{sent}: number of events")
    expect_equal(await run.step() - first, 2, sent=f"{sent}: by how much the step moved")
