"""Mutants of the step: checkpoints that are missing, misnumbered or not what they should be, and wrong evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import art
from art.adapter_kit.blocking import run_blocking
from art.errors import ConfigurationError
from art_conformance.mutants import mutant
from art_conformance.reference import ReferenceBackend, checkpoints

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@mutant(killed_by=("STEP-01", "STEP-03"))
class NumbersOneTooHigh(ReferenceBackend):
    """The checkpoint gets the number after `target_step`."""

    async def _commit(self, model: Any, step: int, weight: float) -> None:
        await super()._commit(model, step + 1, weight)


@mutant(killed_by=("STEP-01", "STEP-06"))
class CountsGradientSteps(ReferenceBackend):
    """Its own step counts gradient steps."""

    def __init__(self) -> None:
        super().__init__()
        self._count = 0

    def _event(self, change: float, num_steps: int) -> dict[str, float]:
        self._count += 1
        return super()._event(change, num_steps)

    async def _get_step(self, model: Any) -> int:
        del model
        return self._count


@mutant(killed_by=("STEP-06",))
class RemembersItsFirstStep(ReferenceBackend):
    """`_get_step` tells for ever what it told first."""

    def __init__(self) -> None:
        super().__init__()
        self._told: dict[str, int] = {}

    async def _get_step(self, model: Any) -> int:
        return self._told.setdefault(model.name, await super()._get_step(model))


@mutant(killed_by=("STEP-02", "STEP-05"))
class SkipsTheCommitWithoutSignal(ReferenceBackend):
    """Where nothing can be trained it ends before it makes a checkpoint."""

    async def _train_model(
        self, model: Any, trajectory_groups: Any, *rest: Any
    ) -> AsyncIterator[dict[str, float]]:
        if self._trainable(trajectory_groups):
            async for event in super()._train_model(model, trajectory_groups, *rest):
                yield event


@mutant(killed_by=("STEP-03",))
class SavesAtTheNextCall(ReferenceBackend):
    """A checkpoint is only saved when the next train begins."""

    def __init__(self) -> None:
        super().__init__()
        self._unsaved: tuple[Any, int, float] | None = None

    async def _commit(self, model: Any, step: int, weight: float) -> None:
        self._unsaved = (model, step, weight)

    async def _train_model(self, *args: Any, **kwargs: Any) -> AsyncIterator[dict[str, float]]:
        if self._unsaved is not None:
            await super()._commit(*self._unsaved)
        async for event in super()._train_model(*args, **kwargs):
            yield event

    async def _get_step(self, model: Any) -> int:
        return self._unsaved[1] if self._unsaved else await super()._get_step(model)


@mutant(killed_by=("STEP-13",))
class KeepsOnlyTheLatest(ReferenceBackend):
    """A train removes the checkpoints before its own."""

    async def _commit(self, model: Any, step: int, weight: float) -> None:
        await super()._commit(model, step, weight)
        await self._delete_checkpoint_files(model, [step])


@mutant(killed_by=("STEP-10",))
class ListsNewestFirst(ReferenceBackend):
    """The listing is descending."""

    async def _list_checkpoint_steps(self, model: Any) -> list[int]:
        return (await super()._list_checkpoint_steps(model))[::-1]


@mutant(killed_by=("STEP-10",))
class ListsNames(ReferenceBackend):
    """The listing is of names, not of numbers."""

    async def _list_checkpoint_steps(self, model: Any) -> list[int]:
        return [f"{step:04d}" for step in await super()._list_checkpoint_steps(model)]  # type: ignore[misc]

    async def _get_step(self, model: Any) -> int:
        return max(map(int, await self._list_checkpoint_steps(model)), default=0)

    async def _prepare_backend_for_training(self, model: Any, config: Any) -> tuple[str, str]:
        del model, config
        return "http://127.0.0.1:9/v1", "key"


@mutant(killed_by=("STEP-09",))
class BeginsAtOne(ReferenceBackend):
    """The first checkpoint has number 1."""

    async def register(self, model: Any) -> None:
        """Make checkpoint 1."""
        if not checkpoints.steps(self._directory(model)):
            await run_blocking(checkpoints.save, self._directory(model), 1, 0.0)


@mutant(killed_by=("STEP-09",))
class TellsNoStep(ReferenceBackend):
    """`_get_step` tells None where nothing was trained yet."""

    async def _get_step(self, model: Any) -> int:
        return await super()._get_step(model) or None  # type: ignore[return-value]


@mutant(killed_by=("STEP-04",))
class SavesTheOldWeights(ReferenceBackend):
    """The new checkpoint is a copy of the one before."""

    async def _commit(self, model: Any, step: int, weight: float) -> None:
        weight = await run_blocking(checkpoints.load, self._directory(model), step - 1)
        await super()._commit(model, step, weight)


@mutant(killed_by=("STEP-08", "RES-09"))
class RefusesAnExistingTarget(ReferenceBackend):
    """A checkpoint that exists already is an error."""

    async def _commit(self, model: Any, step: int, weight: float) -> None:
        if step in checkpoints.steps(art.checkpoints_dir(model)):
            raise ConfigurationError(f"checkpoint {step} exists already")
        await super()._commit(model, step, weight)


@mutant(killed_by=("STEP-08",))
class NumbersOn(ReferenceBackend):
    """A checkpoint that exists already is kept, and the new one gets the next free number."""

    async def _commit(self, model: Any, step: int, weight: float) -> None:
        newest = max(checkpoints.steps(art.checkpoints_dir(model)), default=-1)
        await super()._commit(model, max(step, newest + 1), weight)


@mutant(killed_by=("STEP-12",))
class KeepsAnExistingTarget(ReferenceBackend):
    """A checkpoint that exists already is taken for the result."""

    async def _commit(self, model: Any, step: int, weight: float) -> None:
        if step not in checkpoints.steps(art.checkpoints_dir(model)):
            await super()._commit(model, step, weight)
