"""LOG: the books are the same on every backend."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any

import art
from art.adapter_kit.advantages import is_trainable
from art_conformance.check import FRONTEND_AT_FAULT, GUARDS_THE_FRONTEND, check
from art_conformance.failure import expect, expect_equal
from art_conformance.instruments.differential import (
    SENT,
    Play,
    Plays,
    Script,
    numbered,
    plays,
    without_own,
)
from art_conformance.run import RecordingSink

if TYPE_CHECKING:
    from collections.abc import Mapping

    from art_conformance.stage import Stage


@check(
    "LOG-01",
    clause="books",
    cause="the adapter changes the groups that it is given, or logs them itself",
)
async def trajectory_files_are_the_same(stage: Stage) -> None:
    """The trajectory files have the same names and the same bytes as on the reference."""
    both = await plays(stage)
    _expect_same_files(both.adapter, both.reference)


@check("LOG-02", clause="books", cause="the adapter logs metrics or writes history.jsonl itself")
async def history_rows_are_the_same(stage: Stage) -> None:
    """The rows of history.jsonl are those of the reference, apart from times and the backend's own metrics."""
    both = await plays(stage)
    _expect_same_rows(both.adapter.rows, both.reference.rows, both)


@check("LOG-03", clause="sinks", cause="the adapter logs metrics itself")
async def sinks_are_told_the_same(stage: Stage) -> None:
    """A metric sink is told what it is told on the reference, in the same order, apart from the backend's own metrics."""
    both = await plays(stage)
    _expect_same_rows(both.adapter.sink, both.reference.sink, both)


@check(
    "LOG-04",
    clause="steps",
    cause="the adapter's _get_step is not the newest checkpoint, or one train makes two",
)
async def the_account_of_steps_is_the_same(stage: Stage) -> None:
    """The account of steps, steps.jsonl, is that of the reference, apart from times."""
    both = await plays(stage)
    _expect_same_rows(both.adapter.ledger, both.reference.ledger, both)


@check(
    "LOG-05",
    clause="books",
    cause="the adapter keeps its own notes in the user's state, or drops calls",
)
async def results_and_state_are_the_same(stage: Stage) -> None:
    """What the calls return, the user's state.json and the model.json are those of the reference, apart from the backend's own metrics and name."""
    both = await plays(stage)
    _expect_same_rows(both.adapter.results, both.reference.results, both)
    expect_equal(both.adapter.documents, both.reference.documents, sent=SENT)


@check("LOG-06", clause="steps", cause=FRONTEND_AT_FAULT, redundant=GUARDS_THE_FRONTEND)
async def log_asks_the_backend_nothing(stage: Stage) -> None:
    """`log()` calls no method of the backend: before registration, before the first train, and later."""
    both = await plays(stage)
    expect_equal(both.adapter.calls_of_logs, [], sent="model.log(groups) throughout the script")


@check(
    "LOG-07",
    clause="books",
    cause="registration clears the model's directory, or writes notes there",
)
async def what_was_logged_before_register_stays(stage: Stage) -> None:
    """What was logged before the model was registered stays in the books, and they go on from there."""
    play = (await plays(stage)).adapter
    sent = "model.log(groups), then model.register(backend)"
    expect_equal(play.changed_by_register, ["model.json"], sent=sent)
    first = {"split": next(iter(play.rows[0])).partition("/")[0], "step": play.rows[0]["step"]}
    expect_equal(first, {"split": "val", "step": 0}, sent=sent)
    is_there = "trajectories/val/0000.parquet" in play.trajectories
    expect(is_there, got="no trajectory file", expected="the rollouts' file", sent=sent)


@check("LOG-08", clause="books", cause="the adapter logs the rollouts itself")
async def rollouts_read_back_equal(stage: Stage) -> None:
    """The rollouts that were trained on read back equal, and are there once."""
    run = await stage.run()
    step, groups = await run.step(), await run.groups()
    sent = "model.train(groups), then art.load_trajectories(model's directory)"

    def logged() -> list[art.TrajectoryGroup]:
        return art.load_trajectories(run.directory, split="train", step=step)

    num_before = len(logged())
    await run.train()
    new = logged()[num_before:]
    expect_equal(len(new), len(groups), sent=sent)
    is_same = art.same_groups(new, groups)
    expect(is_same, got="other rollouts", expected="the rollouts that were sent", sent=sent)


@check("LOG-09", clause="books", cause="the metrics' names depend on chance or on the time")
async def a_second_play_gives_the_same(stage: Stage) -> None:
    """The same calls on another fresh model give the same books; the backend's own metrics have the same names."""
    first = (await plays(stage)).adapter
    batch = await (await stage.run()).groups()
    second = await Script(stage, stage.model(), stage.backend, batch).play()
    sent = "the same script twice, each time on a fresh model"
    expect_equal(_names_of_events(second), _names_of_events(first), sent=sent)
    _expect_same_files(second, first, sent=sent)
    twice = Plays(adapter=second, reference=first)
    _expect_same_rows(second.rows, first.rows, twice, sent=sent)
    _expect_same_rows(second.sink, first.sink, twice, sent=sent)
    _expect_same_rows(second.ledger, first.ledger, twice, sent=sent)


@check("LOG-10", clause="sinks", cause=FRONTEND_AT_FAULT, redundant=GUARDS_THE_FRONTEND)
async def a_bad_sink_never_reaches_training(stage: Stage) -> None:
    """A metric sink that raises, and one that hangs, neither fail nor hold up a train."""
    run = await stage.run()
    step, hanging = await run.step(), _HangingSink()
    await run.model.close()
    run.model.report_metrics = [_RaisingSink(), hanging]
    try:
        result = await run.train()
        is_held = not hanging.release.is_set()
    finally:
        hanging.release.set()
        await run.model.close()
        run.model.report_metrics = [run.sink]
    sent = "model.train(groups) with a metric sink that raises and one that hangs"
    expect(is_held, got="the train waited for the sink", expected="no waiting", sent=sent)
    expect_equal(result.step, step + 1, sent=sent)


@check("LOG-11", clause="T3", cause="names of metrics have a prefix, or values are no numbers")
async def the_training_row_is_reckoned_from_the_events(stage: Stage) -> None:
    """The row of a train holds the backend's metrics, names `num_*` summed and others averaged over the stream, and the frontend's own.

    `num_gradient_steps` is the expected total and is not logged. The frontend adds `learning_rate`,
    `num_groups_submitted` and `num_groups_trainable`.
    """
    run = await stage.run()
    groups = await run.groups()
    result = await run.train(groups, 3e-4)
    events = [event for event in run.recorder.last.copies if event is not None]
    expected = {
        **_reckoned(events),
        "num_groups_submitted": float(len(groups)),
        "num_groups_trainable": float(sum(map(is_trainable, groups))),
        "learning_rate": 3e-4,
    }
    row = run.rows()[-1]
    got = {key: value for key, value in row.items() if key not in {"step", "recorded_at"}}
    sent = "model.train(groups, TrainConfig(learning_rate=3e-4))"
    expect_equal(row["step"], result.step, sent=sent)
    expect_equal(sorted(got), sorted(f"train/{name}" for name in expected), sent=sent)
    for name, value in expected.items():
        is_close = math.isclose(got[f"train/{name}"], value, rel_tol=1e-9)
        expect(
            is_close, got=f"train/{name} {got[f'train/{name}']!r}", expected=repr(value), sent=sent
        )


@check("LOG-12", clause="books", cause="the adapter logs metrics or writes history.jsonl itself")
async def the_backends_spelling_writes_no_row(stage: Stage) -> None:
    """`art.backend_train` writes nothing to history or trajectories, and a later log of its groups is credited to the policy that made them."""
    run = await stage.run()
    step, groups, num_rows = await run.step(), await run.groups(), len(run.rows())
    files = sorted(run.directory.glob("trajectories/*/*"))
    sent = "art.backend_train(model, groups)"
    result = await art.backend_train(run.model, groups, learning_rate=1e-4)
    expect_equal(result.step, step + 1, sent=sent)
    expect_equal(len(run.rows()), num_rows, sent=sent)
    expect_equal(sorted(run.directory.glob("trajectories/*/*")), files, sent=sent)
    await run.model.log(groups, split="train", step=result.step)
    row = run.rows()[-1]
    credited = {key: row.get(key) for key in ("step", "policy_step")}
    sent += ", then model.log(groups, split='train', step=result.step)"
    expect_equal(credited, {"step": step + 1, "policy_step": step}, sent=sent)


# --- their parts


def _expect_same_rows(
    got: list[dict[str, Any]], expected: list[dict[str, Any]], both: Plays, sent: str = SENT
) -> None:
    ours, theirs = (without_own(rows, both.adapter, both.reference) for rows in (got, expected))
    expect_equal(numbered(ours), numbered(theirs), sent=sent)


def _expect_same_files(got: Play, expected: Play, sent: str = SENT) -> None:
    names, expected_names = (dict.fromkeys(play.trajectories, "a file") for play in (got, expected))
    expect_equal(names, expected_names, sent=sent)
    for name, contents in expected.trajectories.items():
        is_same = got.trajectories[name] == contents
        expect(is_same, got=f"another {name}", expected="the same bytes", sent=sent)


def _names_of_events(play: Play) -> list[list[str]]:
    """Return the names of the metrics that each train call brought."""
    return [
        sorted({str(name) for event in train.copies if event is not None for name in event})
        for train in play.trains
    ]


def _reckoned(events: list[dict[str, Any]]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for event in events:
        for name, value in event.items():
            values.setdefault(name, []).append(float(value))
    values.pop("num_gradient_steps", None)
    return {
        name: math.fsum(numbers) / (1 if name.startswith("num_") else len(numbers))
        for name, numbers in values.items()
    }


class _RaisingSink(RecordingSink):
    def log(self, metrics: Mapping[str, float], step: int) -> None:
        raise OSError(f"the sink is down, it takes no {sorted(metrics)} of step {step}")


class _HangingSink(RecordingSink):
    def __init__(self) -> None:
        super().__init__()
        self.release = threading.Event()

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self.release.wait()
        super().log(metrics, step)
