"""Mutants that write what is the frontend's to write, or change what it has still to write."""

from __future__ import annotations

import itertools
import json
import shutil
from typing import TYPE_CHECKING, Any

import art
from art_conformance.mutants import mutant
from art_conformance.reference import ReferenceBackend

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@mutant(killed_by=("LOG-01", "LOG-08"))
class LogsRolloutsItself(ReferenceBackend):
    """It logs the groups that it trains on."""

    async def _train_model(
        self, model: Any, groups: Any, *rest: Any
    ) -> AsyncIterator[dict[str, float]]:
        await model.log(groups, split="train")
        async for event in super()._train_model(model, groups, *rest):
            yield event


@mutant(killed_by=("LOG-01", "FS-05"))
class CentresRewardsInPlace(ReferenceBackend):
    """It writes the advantages over the rewards of the groups that it was given."""

    def _trainable(self, groups: list[art.TrajectoryGroup]) -> list[art.TrajectoryGroup]:
        trainable = super()._trainable(groups)
        for group in trainable:
            mean = sum(t.reward for t in group) / len(group.trajectories)
            for trajectory in group:
                trajectory.reward -= mean
        return trainable


@mutant(killed_by=("LOG-02", "LOG-12", "LR-01"))
class AppendsToTheHistory(ReferenceBackend):
    """It appends a row to history.jsonl."""

    async def _commit(self, model: Any, step: int, weight: float) -> None:
        await super()._commit(model, step, weight)
        with (art.model_dir(model) / "history.jsonl").open("a") as file:
            file.write(json.dumps({"train/reward_std_dev": 0.1, "step": step}) + "\n")


@mutant(killed_by=("LOG-02", "LOG-03"))
class LogsMetricsItself(ReferenceBackend):
    """It logs its loss by `model.log`, besides yielding it."""

    async def _commit(self, model: Any, step: int, weight: float) -> None:
        await super()._commit(model, step, weight)
        await model.log(split="train", metrics={"loss_at_end": weight}, step=step)


@mutant(killed_by=("LOG-04",))
class MakesTwoSteps(ReferenceBackend):
    """A train makes a checkpoint more than it was asked for."""

    async def _commit(self, model: Any, step: int, weight: float) -> None:
        await super()._commit(model, step, weight)
        await super()._commit(model, step + 1, weight)


@mutant(killed_by=("LOG-05", "FS-01", "FS-02"))
class KeepsNotesInTheState(ReferenceBackend):
    """It keeps its own step in the user's state.json."""

    async def _commit(self, model: Any, step: int, weight: float) -> None:
        await super()._commit(model, step, weight)
        model.merge_state({"latest_step": step})


@mutant(killed_by=("LOG-07",))
class ClearsTheDirectory(ReferenceBackend):
    """A model without checkpoints is taken for a new one: what lies in its directory is removed."""

    async def register(self, model: Any) -> None:
        """Begin anew."""
        if not await self._list_checkpoint_steps(model):
            shutil.rmtree(art.model_dir(model), ignore_errors=True)
        await super().register(model)


@mutant(killed_by=("LOG-09",))
class NamesMetricsByCall(ReferenceBackend):
    """The name of a metric has the number of the call in it."""

    def __init__(self) -> None:
        super().__init__()
        self._calls = itertools.count()

    def _event(self, change: float, num_steps: int) -> dict[str, float]:
        return {**super()._event(change, num_steps), f"loss_{next(self._calls)}": 1.0}
