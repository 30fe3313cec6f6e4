"""A backend that keeps its checkpoints as directories on disk, as the contract asks."""

from __future__ import annotations

import asyncio
import os
import shutil
from typing import TYPE_CHECKING, Any

import art
from art.adapter_kit.advantages import is_trainable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

_NUM_EVENTS = 3
_PAUSE_S = 0.002


class FileBackend(art.BackendTrainMixin):
    """Trains nothing; each checkpoint is a directory that appears and goes by one rename.

    Args:
        announce: Told "train.stream" when a train starts and "train.commit" when its checkpoint stands.

    Attributes:
        op_number: Told by each event, so that the row of a train is known by it.
    """

    def __init__(self, announce: Callable[[str], None] = lambda _: None) -> None:
        self._announce = announce
        self.op_number = 0.0

    async def register(self, model: art.Model[Any, Any]) -> None:
        directory = art.checkpoints_dir(model)
        for leftover in directory.glob(".*"):
            shutil.rmtree(leftover)
        if not steps_in(directory):
            (directory / "0000").mkdir(parents=True)

    async def _train_model(
        self,
        model: art.TrainableModel[Any, Any],
        trajectory_groups: list[art.TrajectoryGroup],
        config: art.TrainConfig,
        dev_config: art.dev.TrainConfig,
        verbose: bool = False,
    ) -> AsyncIterator[dict[str, float]]:
        self._announce("train.stream")
        assert config.target_step is not None
        directory = art.checkpoints_dir(model)
        unfinished = directory / f".{config.target_step:04d}"
        unfinished.mkdir(parents=True)
        for i in range(_NUM_EVENTS if any(map(is_trainable, trajectory_groups)) else 0):
            (unfinished / f"shard-{i}").write_bytes(bytes([i]) * 10_000)
            await asyncio.sleep(_PAUSE_S)
            yield {"loss": 1.0 / (i + 1), "op": self.op_number}
        unfinished.rename(directory / f"{config.target_step:04d}")
        _sync(directory)
        self._announce("train.commit")

    async def _delete_checkpoint_files(
        self, model: art.TrainableModel[Any, Any], steps_to_keep: list[int]
    ) -> None:
        directory = art.checkpoints_dir(model)
        for step in set(steps_in(directory)) - set(steps_to_keep):
            doomed = directory / f".doomed-{step}"
            (directory / f"{step:04d}").rename(doomed)
            shutil.rmtree(doomed)

    async def _get_step(self, model: art.TrainableModel[Any, Any]) -> int:
        return max(steps_in(art.checkpoints_dir(model)), default=0)

    async def _list_checkpoint_steps(self, model: art.TrainableModel[Any, Any]) -> list[int]:
        return steps_in(art.checkpoints_dir(model))


def steps_in(directory: Path) -> list[int]:
    """The steps of the whole checkpoints in a directory, ascending."""
    return sorted(int(path.name) for path in directory.glob("[0-9]*"))


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
