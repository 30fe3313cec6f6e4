"""DEL, continued: `model.delete_checkpoints`, by which the frontend chooses what is kept."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from typing import TYPE_CHECKING, Any

from art_conformance.check import FRONTEND_AT_FAULT, GUARDS_THE_FRONTEND, check
from art_conformance.checks.deletion import existing, made
from art_conformance.failure import expect, expect_equal
from art_conformance.instruments.streams import interfering
from art_conformance.verdict import Level

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping
    from pathlib import Path

    from art_conformance.run import Run
    from art_conformance.stage import Stage


@check("DEL-12", clause="best step", cause="the listing leaves out checkpoints that exist")
async def the_best_and_the_latest_are_kept(stage: Stage) -> None:
    """`model.delete_checkpoints` keeps the latest and the best; of equals, the newest is the best."""
    run = await stage.run()
    first, second, latest = (await made(run, 3))[-3:]
    await _score(run, "tie", {first: 1.0, second: 1.0, latest: 0.5})
    await run.model.delete_checkpoints("val/tie")
    _expect_asked(
        run, [second, latest], "the latest and the newer one of two that are equally good"
    )


@check("DEL-13", clause="best step", cause=FRONTEND_AT_FAULT, redundant=GUARDS_THE_FRONTEND)
async def a_late_metric_is_found(stage: Stage) -> None:
    """A metric that first appears after a hundred rows of history decides which step is best."""
    run = await stage.run()
    best, latest = (await made(run, 2))[-2:]
    for number in range(101):
        await run.model.log(metrics={"filler": float(number)}, step=latest)
    await _score(run, "late", {best: 1.0, latest: 0.5})
    await run.model.delete_checkpoints("val/late")
    _expect_asked(run, [best, latest], "the latest and the best")


@check("DEL-14", clause="best step", cause=FRONTEND_AT_FAULT, redundant=GUARDS_THE_FRONTEND)
async def an_unknown_metric_deletes_nothing(stage: Stage) -> None:
    """`model.delete_checkpoints` by a metric that was never recorded deletes nothing, and a warning names it."""
    run = await stage.run()
    await made(run, 2)
    before = list(run.recorder.deletions)
    result = await run.model.delete_checkpoints("val/never_recorded")
    sent = "model.delete_checkpoints of a metric that was never recorded"
    expect(not result.deleted, got=f"deleted: {result.deleted}", expected="nothing", sent=sent)
    expect_equal(run.recorder.deletions, before, sent=f"{sent}; deletions that it asked for")
    is_named = any("val/never_recorded" in warning for warning in stage.warnings())
    expect(is_named, got="no such warning", expected="a warning that names it", sent=sent)


@check("DEL-16", clause="steps", cause=FRONTEND_AT_FAULT, redundant=GUARDS_THE_FRONTEND)
async def a_deletion_waits_for_a_train(stage: Stage) -> None:
    """A deletion that is asked for during a train of the same model waits for its end, and keeps what it made."""
    run = await stage.run()
    before = list(run.recorder.deletions)
    during: list[list[int]] = []
    deletions: list[asyncio.Task[Any]] = []

    async def with_a_deletion(stream: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for event in stream:
            yield event
        deletions.append(asyncio.create_task(run.model.delete_checkpoints(None)))
        await asyncio.sleep(0.05)  # time enough for one that does not wait
        during.extend(run.recorder.deletions)

    try:
        with interfering(run, with_a_deletion):
            step = (await run.train()).step
    finally:
        await asyncio.gather(*deletions)
    sent = "model.delete_checkpoints(None) while a train is under way"
    expect_equal(during, before, sent=f"{sent}; deletions before its end")
    _expect_asked(run, [step], "the step that the train made", sent=sent)


@check("DEL-21", clause="best step", level=Level.FULL, cause="deletion keeps the latest alone")
async def the_best_and_the_latest_survive(stage: Stage) -> None:
    """After `model.delete_checkpoints` the latest checkpoint and the best one exist, and no other."""
    run = await stage.run()
    best, other, latest = (await existing(run, 3))[-3:]
    await _score(run, "best", {best: 1.0, other: 0.75, latest: 0.5})
    await run.model.delete_checkpoints("val/best")
    expect_equal(
        sorted(await run.checkpoints()),
        [best, latest],
        sent="model.delete_checkpoints, where the oldest of three steps is the best",
    )


@check("DEL-22", clause="best step", cause=FRONTEND_AT_FAULT, redundant=GUARDS_THE_FRONTEND)
async def infinity_is_never_best(stage: Stage) -> None:
    """A value that is infinite or not a number never makes a step the best, however it came into the history."""
    run = await stage.run()
    odd, best, latest = (await made(run, 3))[-3:]
    await _score(run, "odd", {odd: math.inf, best: 1.0, latest: 0.5})
    rows = [{"val/odd": value, "step": odd} for value in (math.inf, math.nan)]
    written_by_hand = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    with appended(written_by_hand, run.directory / "history.jsonl"):
        await run.model.delete_checkpoints("val/odd")
    _expect_asked(run, [best, latest], "the latest and the best of those with a finite value")


async def _score(run: Run, name: str, values: Mapping[int, float]) -> None:
    for step, value in values.items():
        await run.model.log(split="val", metrics={name: value}, step=step)


def _expect_asked(
    run: Run, kept: list[int], expected: str, *, sent: str = "model.delete_checkpoints"
) -> None:
    asked = run.recorder.deletions[-1] if run.recorder.deletions else "no deletion"
    expect(
        asked == kept,
        got=f"asked to keep {asked}",
        expected=f"asked to keep {kept}: {expected}",
        sent=sent,
    )


@contextlib.contextmanager
def appended(text: bytes, *paths: Path) -> Iterator[None]:
    """Append a text, found nowhere else in them, to files, and take it out again."""
    try:
        for path in paths:
            with path.open("ab") as file:
                file.write(text)
        yield
    finally:
        for path in paths:
            path.write_bytes(path.read_bytes().replace(text, b""))
