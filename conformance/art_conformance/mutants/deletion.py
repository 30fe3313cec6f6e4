"""Mutants of deletion: adapters that delete too much, too little, or what is not theirs."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import art
from art.errors import CheckpointDeletionError, ConfigurationError
from art_conformance.mutants import mutant
from art_conformance.reference import ReferenceBackend, checkpoints

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection
    from pathlib import Path


@mutant(killed_by=("DEL-01", "DEL-15", "DEL-21"))
class DeletesNothing(ReferenceBackend):
    """Deletion does nothing, and says nothing."""

    def _doomed(self, directory: Path, kept: Collection[int]) -> list[int]:
        del directory, kept
        return []


@mutant(killed_by=("DEL-01", "DEL-10"))
class DeletesTheListed(ReferenceBackend):
    """The list is taken for the steps to delete."""

    def _doomed(self, directory: Path, kept: Collection[int]) -> list[int]:
        return [step for step in checkpoints.steps(directory) if step in kept]


@mutant(killed_by=("DEL-01", "DEL-21"))
class KeepsTheLatestAlone(ReferenceBackend):
    """Only the newest of the listed steps is kept: the best is lost."""

    def _doomed(self, directory: Path, kept: Collection[int]) -> list[int]:
        return [step for step in checkpoints.steps(directory) if step != max(kept)]


@mutant(killed_by=("DEL-01",))
class KeepsStepZero(ReferenceBackend):
    """Step 0 is never deleted."""

    def _doomed(self, directory: Path, kept: Collection[int]) -> list[int]:
        return super()._doomed(directory, {0, *kept})


@mutant(killed_by=("DEL-02",))
class RefusesUnknownSteps(ReferenceBackend):
    """A kept step that has no checkpoint raises."""

    def _doomed(self, directory: Path, kept: Collection[int]) -> list[int]:
        unknown = set(kept) - set(checkpoints.steps(directory))
        if unknown:
            raise CheckpointDeletionError(f"there is no checkpoint {min(unknown)}")
        return super()._doomed(directory, kept)


@mutant(killed_by=("DEL-18",))
class TakesTheListForARange(ReferenceBackend):
    """Everything from the first to the last entry of the list is kept, and nothing else."""

    def _doomed(self, directory: Path, kept: Collection[int]) -> list[int]:
        listed = list(kept)
        return super()._doomed(directory, range(listed[0], listed[-1] + 1))


@mutant(killed_by=("DEL-18",))
class CountsTheList(ReferenceBackend):
    """As many of the newest checkpoints are kept as the list is long."""

    def _doomed(self, directory: Path, kept: Collection[int]) -> list[int]:
        return checkpoints.steps(directory)[: -len(kept)]


@mutant(killed_by=("DEL-03",))
class IgnoresAnEmptyList(ReferenceBackend):
    """An empty list is taken for nothing to do."""

    async def _delete_checkpoint_files(self, model: Any, steps_to_keep: list[int]) -> None:
        if steps_to_keep:
            await super()._delete_checkpoint_files(model, steps_to_keep)


@mutant(killed_by=("DEL-19",))
class RefusesAnEmptyListTooLate(ReferenceBackend):
    """An empty list deletes everything, and then raises."""

    async def _delete_checkpoint_files(self, model: Any, steps_to_keep: list[int]) -> None:
        # No step has this number, so that nothing is kept.
        await super()._delete_checkpoint_files(model, steps_to_keep or [-1])
        if not steps_to_keep:
            raise ConfigurationError("steps_to_keep is empty")


@mutant(killed_by=("DEL-04", "DEL-06"))
class RaisesWhereNothingIsDoomed(ReferenceBackend):
    """A deletion that finds nothing to delete raises."""

    def _doomed(self, directory: Path, kept: Collection[int]) -> list[int]:
        doomed = super()._doomed(directory, kept)
        if not doomed:
            raise CheckpointDeletionError("there is nothing to delete")
        return doomed


@mutant(killed_by=("DEL-20",))
class CountsOff(ReferenceBackend):
    """Deletes the oldest checkpoints, as many as by an account of trains that deletions do not correct."""

    def _doomed(self, directory: Path, kept: Collection[int]) -> list[int]:
        account = 1 + sum(map(len, self.sent.values()))
        return checkpoints.steps(directory)[: max(0, account - len(kept))]


@mutant(killed_by=("DEL-05",))
class DeletesInEveryProject(ReferenceBackend):
    """Models are found by their name, whatever their project."""

    async def _delete_checkpoint_files(self, model: Any, steps_to_keep: list[int]) -> None:
        await super()._delete_checkpoint_files(model, steps_to_keep)
        for directory in _base(model).glob(f"*/models/{model.name}/checkpoints"):
            _delete_in(directory, steps_to_keep)


@mutant(killed_by=("DEL-05",))
class DeletesOfEveryModel(ReferenceBackend):
    """A deletion goes through the checkpoints of all models of the project."""

    async def _delete_checkpoint_files(self, model: Any, steps_to_keep: list[int]) -> None:
        await super()._delete_checkpoint_files(model, steps_to_keep)
        for directory in _base(model).glob(f"{model.project}/models/*/checkpoints"):
            _delete_in(directory, steps_to_keep)


def _base(model: Any) -> Path:
    return art.model_dir(model).parents[2]


def _delete_in(directory: Path, kept: Collection[int]) -> None:
    for step in checkpoints.steps(directory):
        if step not in kept:
            checkpoints.remove(directory, step)


@mutant(killed_by=("DEL-06",))
class KnowsTrainedModelsAlone(ReferenceBackend):
    """A model is known from its first train on."""

    async def _delete_checkpoint_files(self, model: Any, steps_to_keep: list[int]) -> None:
        self.sent[model.project, model.name]
        await super()._delete_checkpoint_files(model, steps_to_keep)


@mutant(killed_by=("DEL-07",))
class FollowsSymlinks(ReferenceBackend):
    """What a symlink in the checkpoints' directory leads to is emptied."""

    async def _delete_checkpoint_files(self, model: Any, steps_to_keep: list[int]) -> None:
        await super()._delete_checkpoint_files(model, steps_to_keep)
        for path in self._directory(model).iterdir():
            if path.name.isdigit() and int(path.name) not in steps_to_keep:
                shutil.rmtree(path.resolve())


@mutant(killed_by=("DEL-07",))
class TakesWhatIntReads(ReferenceBackend):
    """Every name that int() reads is a step."""

    async def _delete_checkpoint_files(self, model: Any, steps_to_keep: list[int]) -> None:
        await super()._delete_checkpoint_files(model, steps_to_keep)
        for path in self._directory(model).iterdir():
            with suppress(ValueError):
                if int(path.name) not in steps_to_keep and not path.is_symlink():
                    shutil.rmtree(path)


@mutant(killed_by=("DEL-07",))
class TakesEveryName(ReferenceBackend):
    """Everything in the checkpoints' directory that is not kept is deleted."""

    async def _delete_checkpoint_files(self, model: Any, steps_to_keep: list[int]) -> None:
        await super()._delete_checkpoint_files(model, steps_to_keep)
        kept = {f"{step:04d}" for step in steps_to_keep}
        for path in self._directory(model).iterdir():
            if path.name not in kept and path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)


@mutant(killed_by=("DEL-08",))
class RaisesWhereOneIsGone(ReferenceBackend):
    """Every step that was ever made and not deleted must still be there."""

    def __init__(self) -> None:
        super().__init__()
        self._made: set[int] = set()

    async def _commit(self, model: Any, step: int, weight: float) -> None:
        await super()._commit(model, step, weight)
        self._made.add(step)

    def _doomed(self, directory: Path, kept: Collection[int]) -> list[int]:
        doomed = {*super()._doomed(directory, kept), *(self._made - set(kept))}
        self._made -= doomed
        for step in doomed:
            checkpoints.load(directory, step)
        return sorted(doomed)


@mutant(killed_by=("DEL-09",))
class StopsAtTheFirstFailure(ReferenceBackend):
    """The first checkpoint that cannot be deleted ends the deletion."""

    async def _delete_checkpoint_files(self, model: Any, steps_to_keep: list[int]) -> None:
        directory = self._directory(model)
        for step in self._doomed(directory, steps_to_keep):
            self._fail("delete")
            checkpoints.remove(directory, step)


@mutant(killed_by=("DEL-09",))
class HidesFailures(ReferenceBackend):
    """A checkpoint that cannot be deleted is passed over in silence."""

    async def _delete_checkpoint_files(self, model: Any, steps_to_keep: list[int]) -> None:
        with suppress(CheckpointDeletionError):
            await super()._delete_checkpoint_files(model, steps_to_keep)


@mutant(killed_by=("DEL-10",))
class NeedsTheOneBefore(ReferenceBackend):
    """A train reads the checkpoint before the latest as well, where there ever was one."""

    async def _train_model(self, *args: Any, **kwargs: Any) -> AsyncIterator[dict[str, float]]:
        model, _, config = args[:3]
        if config.target_step >= 2:
            checkpoints.load(self._directory(model), config.target_step - 2)
        async for event in super()._train_model(*args, **kwargs):
            yield event


@mutant(killed_by=("DEL-11",))
class KeepsAnAccountOfDeletions(ReferenceBackend):
    """What was deleted is noted in the user's state file."""

    async def _delete_checkpoint_files(self, model: Any, steps_to_keep: list[int]) -> None:
        await super()._delete_checkpoint_files(model, steps_to_keep)
        path = art.model_dir(model) / "state.json"
        path.write_text(json.dumps({"kept": sorted(steps_to_keep)}))


@mutant(killed_by=("DEL-11",))
class DeletesRollouts(ReferenceBackend):
    """With a checkpoint go the rollouts that were logged at its step."""

    def _doomed(self, directory: Path, kept: Collection[int]) -> list[int]:
        doomed = super()._doomed(directory, kept)
        for step in doomed:
            for path in directory.parent.glob(f"trajectories/*/{step:04d}.parquet"):
                path.unlink()
        return doomed


@mutant(killed_by=("DEL-12",))
class ListsTheNewestAlone(ReferenceBackend):
    """Only the newest checkpoint is listed."""

    async def _list_checkpoint_steps(self, model: Any) -> list[int]:
        return (await super()._list_checkpoint_steps(model))[-1:]


@mutant(killed_by=("DEL-15",))
class ListsFromMemory(ReferenceBackend):
    """The listing has all steps that it ever had."""

    def __init__(self) -> None:
        super().__init__()
        self._listed: dict[tuple[str, str], set[int]] = {}

    async def _list_checkpoint_steps(self, model: Any) -> list[int]:
        listed = self._listed.setdefault((model.project, model.name), set())
        listed.update(await super()._list_checkpoint_steps(model))
        return sorted(listed)


@mutant(killed_by=("DEL-17",))
class SortsByName(ReferenceBackend):
    """Steps are put in order as text."""

    async def _list_checkpoint_steps(self, model: Any) -> list[int]:
        return sorted(await super()._list_checkpoint_steps(model), key=lambda step: f"{step:04d}")


@mutant(killed_by=("DEL-17",))
class KnowsFourDigits(ReferenceBackend):
    """A step has four digits, no more."""

    async def _list_checkpoint_steps(self, model: Any) -> list[int]:
        return [step for step in await super()._list_checkpoint_steps(model) if step < 10_000]
