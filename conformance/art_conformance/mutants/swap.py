"""Mutants that show in a user's script which backend it runs on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import art
from art_conformance.mutants import mutant
from art_conformance.reference import ReferenceBackend

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@mutant(killed_by=("SWAP-01",))
class WritesALogFile(ReferenceBackend):
    """It keeps a log file in the model's directory."""

    async def _commit(self, model: Any, step: int, weight: float) -> None:
        await super()._commit(model, step, weight)
        (art.model_dir(model) / "training.log").write_text(f"{step}\n")


@mutant(killed_by=("SWAP-02",))
class TrainsPastTheFrontend(ReferenceBackend):
    """Its own spelling of `train` runs the training without the frontend."""

    async def train(self, model: Any, groups: Any, **options: Any) -> art.TrainResult:  # type: ignore[override]
        """Train."""
        step = await self._get_step(model) + 1
        config = art.TrainConfig(**options, target_step=step)
        events = [event async for event in self._train_model(model, list(groups), config, {})]
        return art.TrainResult(step, events[-1])


@mutant(killed_by=("SWAP-03",))
class FillsInTheEndpoint(ReferenceBackend):
    """It sets the model's endpoint after a train by itself."""

    async def _commit(self, model: Any, step: int, weight: float) -> None:
        await super()._commit(model, step, weight)
        model.inference_base_url = "http://127.0.0.1:8000/v1"


@mutant(killed_by=("SWAP-04",))
class ReadsItsStepInTheBooks(ReferenceBackend):
    """It takes its step from the frontend's ledger instead of looking for checkpoints."""

    async def _get_step(self, model: Any) -> int:
        path = art.model_dir(model) / "steps.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return max((json.loads(line).get("step", 0) for line in lines), default=0)


@mutant(killed_by=("SWAP-05",))
class FailsWhenVerbose(ReferenceBackend):
    """The branch for more log lines was never tried."""

    async def _train_model(
        self, model: Any, groups: Any, config: Any, dev_config: Any, verbose: bool = False
    ) -> AsyncIterator[dict[str, float]]:
        if verbose:
            print(f"rate {config['learning_rate']}")  # noqa: T201
        async for event in super()._train_model(model, groups, config, dev_config, verbose):
            yield event


@mutant(killed_by=("SWAP-06",))
class DropsGroups(ReferenceBackend):
    """It trains on the first group alone."""

    async def _train_model(
        self, model: Any, groups: Any, *rest: Any
    ) -> AsyncIterator[dict[str, float]]:
        async for event in super()._train_model(model, groups[:1], *rest):
            yield event
