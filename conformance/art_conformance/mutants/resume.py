"""Mutants of resuming: adapters that lose something between two processes, or leave something behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from art.errors import TrainingError
from art_conformance.mutants import mutant
from art_conformance.reference import ReferenceBackend, checkpoints

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@mutant(killed_by=("RES-01",))
class RemembersTheStep(ReferenceBackend):
    """The step is kept in memory alone."""

    def __init__(self) -> None:
        super().__init__()
        self._steps: dict[tuple[str, str], int] = {}

    async def _commit(self, model: Any, step: int, weight: float) -> None:
        await super()._commit(model, step, weight)
        self._steps[model.project, model.name] = step

    async def _get_step(self, model: Any) -> int:
        return self._steps.get((model.project, model.name), 0)


@mutant(killed_by=("RES-02",))
class StartsFromTheBaseModel(ReferenceBackend):
    """Register initialises the newest checkpoint, though it was trained."""

    async def register(self, model: Any) -> None:
        """Make the newest checkpoint anew."""
        newest = await self._get_step(model)
        checkpoints.save(self._directory(model), newest, 0.0)


@mutant(killed_by=("RES-02",))
class ClearsAwayAtClose(ReferenceBackend):
    """Close deletes all checkpoints but the latest."""

    def __init__(self) -> None:
        super().__init__()
        self._models: list[Any] = []

    async def register(self, model: Any) -> None:
        """Remember the model."""
        await super().register(model)
        self._models.append(model)

    async def close(self) -> None:
        """Clear away."""
        await super().close()
        for model in self._models:
            await self._delete_checkpoint_files(model, [await self._get_step(model)])


@mutant(killed_by=("RES-07",))
class MakesACheckpointAtRegister(ReferenceBackend):
    """Register saves the present weights as a further checkpoint."""

    async def register(self, model: Any) -> None:
        """Save once more."""
        await super().register(model)
        newest = await self._get_step(model)
        if newest:
            weight = checkpoints.load(self._directory(model), newest)
            checkpoints.save(self._directory(model), newest + 1, weight)


class _WritesLater(ReferenceBackend):
    """Keeps a finished checkpoint in memory, for a subclass to write some time."""

    def __init__(self) -> None:
        super().__init__()
        self._unwritten: list[tuple[Any, int, float]] = []

    async def _commit(self, model: Any, step: int, weight: float) -> None:
        self._unwritten.append((model, step, weight))

    async def _write(self) -> None:
        unwritten, self._unwritten = self._unwritten, []
        for item in unwritten:
            await super()._commit(*item)

    async def _train_model(self, *args: Any, **kwargs: Any) -> AsyncIterator[dict[str, float]]:
        await self._write()
        async for event in super()._train_model(*args, **kwargs):
            yield event

    async def close(self) -> None:
        """Write what is left."""
        await self._write()
        await super().close()


@mutant(killed_by=("RES-03", "RES-04", "RES-10"))
class CommitsAtTheNextTrain(_WritesLater):
    """A checkpoint is written when the next train begins."""


@mutant(killed_by=("RES-04", "RES-10"))
class CommitsWhenAsked(_WritesLater):
    """A checkpoint is written when the next call comes, whichever it is: only a killed process loses it."""

    async def _list_checkpoint_steps(self, model: Any) -> list[int]:
        await self._write()
        return await super()._list_checkpoint_steps(model)


@mutant(killed_by=("RES-11",))
class SavesTheOldWeightsFirst(ReferenceBackend):
    """The checkpoint is made when the train begins, and filled at its end; an error takes it away, a kill does not."""

    async def _train_model(self, *args: Any, **kwargs: Any) -> AsyncIterator[dict[str, float]]:
        model, _, config = args[:3]
        directory, target = self._directory(model), config.target_step
        checkpoints.save(directory, target, checkpoints.load(directory, target - 1))
        try:
            async for event in super()._train_model(*args, **kwargs):
                yield event
        except BaseException:
            checkpoints.remove(directory, target)
            raise


@mutant(killed_by=("RES-05",))
class MakesTheDirectoryFirst(ReferenceBackend):
    """An empty directory stands for the checkpoint from the first event on, and counts as one after a kill."""

    async def _train_model(self, *args: Any, **kwargs: Any) -> AsyncIterator[dict[str, float]]:
        model, _, config = args[:3]
        target = checkpoints.step_dir(self._directory(model), config.target_step)
        async for event in super()._train_model(*args, **kwargs):
            target.mkdir(exist_ok=True)
            yield event


@mutant(killed_by=("RES-05",))
class LocksTheModelOut(ReferenceBackend):
    """A file tells that a train is under way, and is still there when its process was killed."""

    async def _train_model(self, *args: Any, **kwargs: Any) -> AsyncIterator[dict[str, float]]:
        lock = self._directory(args[0]) / checkpoints.WORK / "training"
        if lock.exists():
            raise TrainingError("another train is under way")
        lock.parent.mkdir(parents=True, exist_ok=True)
        lock.touch()
        try:
            async for event in super()._train_model(*args, **kwargs):
                yield event
        finally:
            lock.unlink()
