"""The whole life of one backend, watched from outside: what it changes in the process, writes, prints, leaves behind."""

from __future__ import annotations

import gc
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import art
from art.testing import InMemoryBackend
from art_conformance.instruments.leftovers import Held, left_beyond
from art_conformance.instruments.process_state import WatchedProcess
from art_conformance.stage import close_backend, once_a_stage

if TYPE_CHECKING:
    from art_conformance.stage import Stage

_GRACE_S = 3.0
# Kept on purpose until the process ends, or for the next one, by libraries that adapters use.
_KEPT_BY_LIBRARIES = ("torchinductor_", "pymp-")


@dataclass(frozen=True)
class Life:
    """What was seen of a backend that was made, trained once, and closed.

    Attributes:
        changed: What it changed of all that the process shares.
        printed: What it printed to sys.stdout.
        foreign: What is in the model's directory, and is not with a backend that writes nothing.
        strays: What it made in the base path beside the model's directory, and in the working directory.
        temporary: What it left where temporary files go.
        left: Tasks, threads, child processes and open files that were still there some seconds after its end.
    """

    changed: list[str]
    printed: str
    foreign: list[str]
    strays: list[str]
    temporary: list[str]
    left: list[str]


@once_a_stage
async def watched_life(stage: Stage) -> Life:
    """Return what one backend's life showed."""
    await _import_everything(stage)
    directory = Path(tempfile.mkdtemp(prefix="life-", dir=stage.workspace))
    gc.collect()
    with WatchedProcess(directory, stage.adapter.timeout_s) as process:
        before = Held.now()
        base_path, model_dir = await _live(stage, directory, process)
        left = await left_beyond(before, _GRACE_S)
        process.look()
        beside = [*_beside(model_dir, base_path), *_names_in(process.working_directory)]
        temporary = [
            name for name in _names_in(process.temporary) if not name.startswith(_KEPT_BY_LIBRARIES)
        ]
        foreign = sorted(_entries(model_dir) - await _entries_of_the_frontend(stage, directory))
        return Life(process.changed, process.printed, foreign, beside, temporary, left)


async def _import_everything(stage: Stage) -> None:
    """Train the shared model once, so that what only an import brings about is not laid at an adapter's door."""
    directory = Path(tempfile.mkdtemp(prefix="before-", dir=stage.workspace))
    with WatchedProcess(directory, stage.adapter.timeout_s):
        run = await stage.run()
        if not run.recorder.trains:
            await run.train()


async def _live(stage: Stage, directory: Path, process: WatchedProcess) -> tuple[Path, Path]:
    """Live it, and hold on to nothing of it; return its model's base path and directory."""
    backend = stage.new_backend(f"{directory.name}/state")
    model = stage.model(books=f"{directory.name}/books")
    try:
        await model.register(backend)
        await model.train(await stage.groups(model), art.TrainConfig(learning_rate=1e-4))
        process.look()
    finally:
        await model.close()
        await close_backend(backend)
    return Path(model.base_path), art.model_dir(model)


async def _entries_of_the_frontend(stage: Stage, directory: Path) -> set[str]:
    model = stage.model(books=f"{directory.name}/books of the frontend")
    await model.register(InMemoryBackend())
    await model.train(await stage.groups(model), art.TrainConfig(learning_rate=1e-4))
    await model.close()
    return _entries(art.model_dir(model))


def _entries(model_dir: Path) -> set[str]:
    """Return the names in a model's directory, and those among its checkpoints, relative to it."""
    found = [*model_dir.glob("*"), *model_dir.glob("checkpoints/*")]
    return {path.relative_to(model_dir).as_posix() for path in found}


def _names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def _beside(directory: Path, base: Path) -> list[str]:
    """Return what lies below `base`, except a directory in it and those on the way there."""
    beside = (
        path
        for path in base.rglob("*")
        if not (path.is_relative_to(directory) or directory.is_relative_to(path))
    )
    return sorted(path.relative_to(base).as_posix() for path in beside)
