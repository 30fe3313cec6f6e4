"""SWAP: one line changes, and nothing else does."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import art
from art.adapter_kit.advantages import is_trainable
from art.testing import InMemoryBackend
from art_conformance.check import check
from art_conformance.failure import Unobservable, expect, expect_equal
from art_conformance.instruments.differential import SENT, plays
from art_conformance.recorder import recording
from art_conformance.verdict import Level

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from art_conformance.adapter import AnyModel
    from art_conformance.run import Run
    from art_conformance.stage import Stage

_CONFIG = art.TrainConfig(learning_rate=1e-4)
_USERS_OWN = {
    "inference_base_url": "https://inference.example/v1",
    "inference_api_key": "a key of the user's own",
    "inference_model_name": "a-name-of-the-users-own",
}


@check("SWAP-01", clause="T7", cause="the adapter writes beside its checkpoints directory")
async def the_same_files_are_written(stage: Stage) -> None:
    """The same files are written as on the reference, apart from `checkpoints/`."""
    both = await plays(stage)
    got, expected = (dict.fromkeys(play.files, "a file") for play in (both.adapter, both.reference))
    expect_equal(got, expected, sent=SENT)


@check(
    "SWAP-02", clause="steps", cause="the adapter's own `train` does not go by art.backend_train"
)
async def both_spellings_do_the_same(stage: Stage) -> None:
    """`model.train(groups)` and `backend.train(model, groups)` make one step each, and return the same metrics of the frontend.

    A backend without a `train` of its own is asked by `art.backend_train`.
    """
    run = await stage.run()
    step = await run.step()
    train: Any = getattr(run.backend, "train", art.backend_train)
    async with _beside(run, run.backend) as model:
        first = await model.train(await run.groups(), _CONFIG)
        second = await train(model, await run.groups(), learning_rate=_CONFIG.learning_rate)
    sent = "model.train(groups), then backend.train(model, groups, learning_rate=...)"
    is_result = isinstance(second, art.TrainResult)
    expect(is_result, got=f"a {type(second).__name__}", expected="a TrainResult", sent=sent)
    expect_equal([first.step, second.step], [step + 1, step + 2], sent=sent)
    expect_equal(_of_the_frontend(second), _of_the_frontend(first), sent=sent)


@check("SWAP-03", clause="T7", cause="the adapter fills in the model's fields by itself")
async def the_users_endpoint_stays(stage: Stage) -> None:
    """Without the inference capability the endpoint that the user has set on the model stays, through registration and training."""
    run = await stage.run()
    recorder = recording(run.backend, hidden=("inference", "inference_name", "inference_health"))
    async with _beside(run, recorder, **_USERS_OWN) as model:
        await model.train(await run.groups(), _CONFIG)
        got = {name: getattr(model, name) for name in _USERS_OWN}
    expect_equal(got, _USERS_OWN, sent="inference fields set; register; train")


@check(
    "SWAP-04",
    clause="steps",
    needs=("step",),
    level=Level.FULL,
    cause="_get_step reads the frontend's books, or counts calls, instead of looking for checkpoints",
)
async def books_are_taken_over(stage: Stage) -> None:
    """A run can move to another backend and back: each move warns, and rows of steps that are made anew no longer count."""
    elsewhere = InMemoryBackend.supporting("step", "listing")
    first = stage.model()
    await first.register(elsewhere)
    for reward in (2.0, 3.0):
        await first.train(await (await stage.run()).groups(), _CONFIG)
        await first.log(metrics={"reward": reward}, split="val")
    await first.close()

    num_warnings = len(stage.warnings())
    run = await stage.new_run(first.name)
    sent = "two trains on art.testing.InMemoryBackend, then register with the adapter"
    expect_equal(await run.step(), 0, sent=sent)
    expect(len(stage.warnings()) > num_warnings, got="no warning", expected="a warning", sent=sent)
    result = await run.train()
    sent += ", train"
    expect_equal(result.step, 1, sent=sent)
    await run.model.log(metrics={"reward": 0.5}, split="val")
    expect_equal(await _scores(run.model), {1: 0.5}, sent=f"{sent}, log val/reward 0.5")

    num_warnings = len(stage.warnings())
    await run.model.register(elsewhere)
    sent += ", then register with the first one again"
    expect_equal(await run.step(), 2, sent=sent)
    expect(len(stage.warnings()) > num_warnings, got="no warning", expected="a warning", sent=sent)
    result = await run.train()
    expect_equal(result.step, 3, sent=f"{sent}, train")


@check("SWAP-05", clause="T1", cause="the adapter fails where it is asked to be verbose")
async def upstreams_spellings_run(stage: Stage) -> None:
    """Code written for upstream runs: a positional config, `_config`, an iterator of groups, `verbose`."""
    run = await stage.run()
    step = await run.step()
    options: Any = {"scale_learning_rate_by_reward_std_dev": True}
    await run.model.train(iter(await run.groups()), _CONFIG, options, True)
    await run.model.train(await run.groups(), config=_CONFIG, _config=options, verbose=False)
    await run.model.log(await run.groups(), split="val")
    await run.model.log([t for group in await run.groups() for t in group])
    result = await run.model.train(group for group in await run.groups())
    sent = "model.train(iter(groups), config, _config, True), log, train without a config"
    expect_equal(result.step, step + 3, sent=sent)


@check(
    "SWAP-06", clause="T2", level=Level.FULL, cause="the adapter trains on a part of the batch only"
)
async def every_rollout_is_trained(stage: Stage) -> None:
    """Every rollout whose reward differs from its group's mean reaches the trainer.

    The others tell nothing; an adapter may leave them out. Where the probe does not tell how many were sent, there
    is nothing to see.
    """
    run = await stage.run()
    groups = await run.groups()
    await run.received()  # else there is nothing to see
    await run.train(groups)
    num_sent = (await run.received())[-1].num_trajectories
    if num_sent is None:
        raise Unobservable("the probe's received does not tell num_trajectories")
    num_telling = sum(map(_num_telling, groups))
    expected = f"at least {num_telling} trajectories"
    is_all = num_sent >= num_telling
    expect(is_all, got=num_sent, expected=expected, sent="model.train(groups)")


# --- their parts


@asynccontextmanager
async def _beside(run: Run, backend: Any, **fields: Any) -> AsyncIterator[AnyModel]:
    """Give another model object of the run's name, in the same books, and the run's own back its step."""
    model = run.stage.model(run.model.name)
    for name, value in fields.items():
        setattr(model, name, value)
    try:
        await model.register(backend)
        yield model
    finally:
        await model.close()
        await run.model.register(run.recorder)


def _of_the_frontend(result: art.TrainResult) -> dict[str, float | None]:
    names = ("num_groups_submitted", "num_groups_trainable", "learning_rate")
    return {name: result.metrics.get(name) for name in names}


async def _scores(model: AnyModel) -> dict[int, float]:
    """Return val/reward by step, as a rule of retention is told it."""
    scores: dict[int, float] = {}

    def look(steps: list[art.StepInfo]) -> list[int]:
        scores.update({info.step: info.metric for info in steps if info.metric is not None})
        return [info.step for info in steps]

    await model.delete_checkpoints("val/reward", retention=look, dry_run=True)
    return scores


def _num_telling(group: art.TrajectoryGroup) -> int:
    if not is_trainable(group):
        return 0
    rewards = [trajectory.reward for trajectory in group.trajectories]
    return sum(reward != sum(rewards) / len(rewards) for reward in rewards)
