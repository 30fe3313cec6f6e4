"""ToyBackend: 'trains' a table of how well each word went down. The whole of an adapter, without an engine."""

from __future__ import annotations

import asyncio
import json
import shutil
from typing import TYPE_CHECKING, Any

import art
from art.adapter_kit.advantages import group_advantages, is_trainable
from art.adapter_kit.blocking import run_blocking

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from art.backend import AnyTrainableModel


class ToyBackend(art.BackendTrainMixin):
    """Keeps, for every word that a model said, the sum of the advantages it was said with."""

    async def _train_model(
        self,
        model: AnyTrainableModel,
        trajectory_groups: list[art.TrajectoryGroup],
        config: art.TrainConfig,
        dev_config: art.dev.TrainConfig,
        verbose: bool = False,  # noqa: ARG002 - it logs nothing
    ) -> AsyncIterator[dict[str, float]]:
        if dev_config:
            raise art.errors.ConfigurationError(f"ToyBackend has no option {min(dev_config)!r}")
        target = config.target_step or 1
        directory = art.checkpoints_dir(model)
        words = await run_blocking(_load, directory, target - 1)
        for group in filter(is_trainable, trajectory_groups):
            await asyncio.sleep(0)  # here a real backend works, and a cancellation arrives
            rewards = [trajectory.reward for trajectory in group.trajectories]
            for trajectory, advantage in zip(
                group.trajectories, group_advantages(rewards), strict=True
            ):
                for word in _said(trajectory):
                    words[word] = words.get(word, 0.0) + config.learning_rate * advantage
            yield {"num_words": float(len(words)), "largest": max(words.values(), default=0.0)}
        await run_blocking(_save, directory, target, words)

    async def _delete_checkpoint_files(
        self, model: AnyTrainableModel, steps_to_keep: list[int]
    ) -> None:
        if not steps_to_keep:
            raise art.errors.ConfigurationError("steps_to_keep is empty; the latest must stay")
        await run_blocking(_delete, art.checkpoints_dir(model), set(steps_to_keep))

    async def _get_step(self, model: AnyTrainableModel) -> int:
        return max(await self._list_checkpoint_steps(model), default=0)

    async def _list_checkpoint_steps(self, model: AnyTrainableModel) -> list[int]:
        return await run_blocking(_steps, art.checkpoints_dir(model))


def _said(trajectory: art.Trajectory) -> list[str]:
    messages: list[dict[str, Any]] = trajectory.messages()  # type: ignore[assignment]
    return [
        word
        for message in messages
        if message["role"] == "assistant"
        for word in str(message.get("content") or "").split()
    ]


def _steps(directory: Path) -> list[int]:
    if not directory.exists():
        return []
    return sorted(
        int(path.name)
        for path in directory.iterdir()
        if path.name.isdecimal() and path.is_dir() and not path.is_symlink()
    )


def _load(directory: Path, step: int) -> dict[str, float]:
    if step == 0:
        return {}
    words: dict[str, float] = json.loads((directory / f"{step:04d}" / "words.json").read_text())
    return words


def _save(directory: Path, step: int, words: dict[str, float]) -> None:
    """Write aside, then give it its name by one rename: a crash leaves nothing half."""
    unfinished = directory / ".toy" / f"{step:04d}"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    (unfinished / "words.json").write_text(json.dumps(words))
    target = directory / f"{step:04d}"
    shutil.rmtree(target, ignore_errors=True)
    unfinished.rename(target)


def _delete(directory: Path, kept: set[int]) -> None:
    for step in _steps(directory):
        if step not in kept:
            shutil.rmtree(directory / f"{step:04d}", ignore_errors=True)
