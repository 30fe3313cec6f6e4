"""Mutants that only a sequence of calls brings to light."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from art_conformance.mutants import mutant
from art_conformance.reference import ReferenceBackend, checkpoints

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection
    from pathlib import Path


@mutant(killed_by=("STATE-01",))
class SavesAtTheFirstEvent(ReferenceBackend):
    """The checkpoint is saved before the first event, and stays when the train breaks."""

    async def _train_model(self, model: Any, *args: Any) -> AsyncIterator[dict[str, float]]:
        target = self._target_step(args[1])
        checkpoints.save(self._directory(model), target, 1.0)
        async for event in super()._train_model(model, *args):
            yield event


@mutant(killed_by=("STATE-01",))
class DeletesBelowTheOldestKept(ReferenceBackend):
    """Deletion takes the oldest kept step for a border: what is newer stays."""

    def _doomed(self, directory: Path, kept: Collection[int]) -> list[int]:
        return [step for step in super()._doomed(directory, kept) if step < min(kept)]


@mutant(killed_by=("STATE-01",))
class ForgetsAtRestart(ReferenceBackend):
    """A backend that registers a model anew begins at checkpoint 0."""

    async def register(self, model: Any) -> None:
        """Begin anew."""
        for step in checkpoints.steps(self._directory(model)):
            checkpoints.remove(self._directory(model), step)
        await super().register(model)
