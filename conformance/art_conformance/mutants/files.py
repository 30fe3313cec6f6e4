"""Mutants that write, open, change or print what is not theirs."""

from __future__ import annotations

import json
import logging
import os
import random
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import art
from art_conformance.mutants import mutant
from art_conformance.reference import ReferenceBackend

if TYPE_CHECKING:
    from collections.abc import Collection

_VARIABLE = "ART_CONFORMANCE_MUTANT"


class _Committing(ReferenceBackend):
    """The reference with a method that is called at every commit."""

    async def _commit(self, model: Any, step: int, weight: float) -> None:
        await super()._commit(model, step, weight)
        self._also(model)

    def _also(self, model: Any) -> None:
        """Nothing."""


@mutant(killed_by=("FS-01", "FS-02"))
class WritesHistory(_Committing):
    """It writes a row of its own into the history."""

    def _also(self, model: Any) -> None:
        with (art.model_dir(model) / "history.jsonl").open("a") as file:
            file.write('{"step": 0, "backend/loss": 0.5}\n')


@mutant(killed_by=("FS-01",))
class WritesAStrayFile(_Committing):
    """It keeps a file of its own beside the books."""

    def _also(self, model: Any) -> None:
        (art.model_dir(model) / "adapter.json").write_text("{}")


@mutant(killed_by=("FS-01",))
class WritesBetweenCheckpoints(_Committing):
    """It names the latest checkpoint in a file among the checkpoints."""

    def _also(self, model: Any) -> None:
        (art.checkpoints_dir(model) / "latest").write_text("1")


@mutant(killed_by=("FS-02",))
class ReadsTheHistory(_Committing):
    """It looks into the history for what the frontend has told it."""

    def _also(self, model: Any) -> None:
        path = art.model_dir(model) / "history.jsonl"
        if path.exists():
            path.read_text()


@mutant(killed_by=("FS-02",))
class LooksAtTheStateWhenDeleting(ReferenceBackend):
    """A deletion asks the user's state what to keep."""

    def _doomed(self, directory: Path, kept: Collection[int]) -> list[int]:
        state = directory.parent / "state.json"
        pinned = json.loads(state.read_text()) if os.access(state, os.R_OK) else {}
        (directory.parent / "model.json").read_text()
        return super()._doomed(directory, {*kept, *pinned.get("pinned", [])})


@mutant(killed_by=("FS-03",))
class ChangesTheDirectory(_Committing):
    """The working directory is another one afterwards."""

    def _also(self, model: Any) -> None:
        del model
        os.chdir("/")


@mutant(killed_by=("FS-03",))
class SetsAVariable(_Committing):
    """A variable of the environment is set."""

    def _also(self, model: Any) -> None:
        del model
        os.environ[_VARIABLE] = "1"


@mutant(killed_by=("FS-03",))
class SeedsTheRandomNumbers(_Committing):
    """The global random numbers are seeded."""

    def _also(self, model: Any) -> None:
        del model
        random.seed(0)


@mutant(killed_by=("FS-03",))
class DrawsRandomNumbers(ReferenceBackend):
    """The order of the groups is drawn from the global random numbers."""

    def _trainable(self, groups: list[art.TrajectoryGroup]) -> list[art.TrajectoryGroup]:
        return sorted(super()._trainable(groups), key=lambda _: random.random())


@mutant(killed_by=("FS-03",))
class SetsUpLogging(ReferenceBackend):
    """Logging is set up for the whole program when the backend is made."""

    def __init__(self) -> None:
        super().__init__()
        logging.basicConfig(level=logging.ERROR, handlers=[logging.NullHandler()])


@mutant(killed_by=("FS-03",))
class SilencesTheLogger(_Committing):
    """The library's logger is set to errors only."""

    def _also(self, model: Any) -> None:
        del model
        logging.getLogger("art").setLevel(logging.ERROR)


@mutant(killed_by=("FS-03",))
class IgnoresWarnings(_Committing):
    """Warnings are switched off for the whole program."""

    def _also(self, model: Any) -> None:
        del model
        warnings.filterwarnings("ignore")


@mutant(killed_by=("FS-04",))
class WritesToTheWorkingDirectory(_Committing):
    """A log goes to the working directory."""

    def _also(self, model: Any) -> None:
        del model
        Path("adapter.log").write_text("")


@mutant(killed_by=("FS-04",))
class WritesToTheBasePath(_Committing):
    """An index of all models lies in the base path."""

    def _also(self, model: Any) -> None:
        (Path(model.base_path) / "models.json").write_text("{}")


@mutant(killed_by=("FS-04",))
class LeavesTemporaryFiles(_Committing):
    """What is sent is written to a temporary directory that is never removed."""

    def _also(self, model: Any) -> None:
        del model
        tempfile.mkdtemp()


@mutant(killed_by=("FS-05",))
class DropsGroupsInPlace(ReferenceBackend):
    """Groups are taken out of the list when they are done."""

    def _trainable(self, groups: list[art.TrajectoryGroup]) -> list[art.TrajectoryGroup]:
        found = super()._trainable(groups)
        del groups[:1]
        return found


@mutant(killed_by=("FS-05",))
class StripsLogprobsInPlace(ReferenceBackend):
    """The log probabilities are taken out of the choices, since they are not needed any more."""

    def _trainable(self, groups: list[art.TrajectoryGroup]) -> list[art.TrajectoryGroup]:
        for trajectory in (t for group in groups for t in group.trajectories):
            items: list[Any] = trajectory.messages_and_choices
            for choice in (item for item in items if hasattr(item, "logprobs")):
                choice.logprobs = None
        return super()._trainable(groups)


@mutant(killed_by=("FS-06",))
class SetsTheInferenceName(_Committing):
    """The name of the new checkpoint is stored on the model."""

    def _also(self, model: Any) -> None:
        model.inference_model_name = "latest"


@mutant(killed_by=("FS-06",))
class FillsInTheInternalConfig(_Committing):
    """Defaults are stored in the model's `_internal_config`."""

    def _also(self, model: Any) -> None:
        model._internal_config = {"peft_args": {"r": 8}}


@mutant(killed_by=("FS-07",))
class Prints(_Committing):
    """It prints that it is done."""

    def _also(self, model: Any) -> None:
        del model
        print("saved a checkpoint")  # noqa: T201
