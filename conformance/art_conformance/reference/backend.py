"""A backend that trains one number, keeps it in a file, and serves it: the contract and nothing else."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any, ClassVar

import art
from art.adapter_kit.advantages import is_trainable
from art.adapter_kit.blocking import run_blocking
from art.errors import CheckpointDeletionError, ConfigurationError, TrainingError
from art_conformance.adapter import Received
from art_conformance.reference import checkpoints
from art_conformance.reference.endpoint import Endpoint

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection
    from pathlib import Path

    from art.backend import AnyModel, AnyTrainableModel
    from art_conformance.adapter import Fault


class ReferenceBackend(art.BackendTrainMixin):
    """Trains one number by the rewards it is shown.

    Attributes:
        fault: What goes wrong in the next call, set by the probe; None for nothing.
        sent: Every train call as it reached the trainer, by (project, name).
        endpoint_class: What serves a model.
    """

    endpoint_class: ClassVar[type[Endpoint]] = Endpoint

    def __init__(self) -> None:
        self.fault: Fault | None = None
        self.sent: dict[tuple[str, str], list[Received]] = {}
        self._endpoints: dict[tuple[str, str], Endpoint] = {}

    # --- the two methods

    async def _train_model(
        self,
        model: AnyTrainableModel,
        trajectory_groups: list[art.TrajectoryGroup],
        config: art.TrainConfig,
        dev_config: art.dev.TrainConfig,
        verbose: bool = False,  # noqa: ARG002 - it logs nothing
    ) -> AsyncIterator[dict[str, float]]:
        self._check_options(dev_config)
        target = self._target_step(config)
        directory = self._directory(model)
        weight = await run_blocking(checkpoints.load, directory, target - 1)
        self._received(model, trajectory_groups, config)
        self._fail("train_start")
        groups = self._trainable(trajectory_groups)
        for group in groups:
            await asyncio.sleep(0)
            change = self._update(group, config.learning_rate)
            weight += change
            yield self._event(change, len(groups))
            self._fail("train_middle")
        self._fail("train_commit")
        await self._commit(model, target, weight)

    async def _delete_checkpoint_files(
        self, model: AnyTrainableModel, steps_to_keep: list[int]
    ) -> None:
        if not steps_to_keep:
            raise ConfigurationError("steps_to_keep is empty; at least the latest must stay")
        errors: list[Exception] = []
        for step in self._doomed(self._directory(model), steps_to_keep):
            try:
                await self._withdraw(model, step)
                self._fail("delete")
                await run_blocking(checkpoints.remove, self._directory(model), step)
            except Exception as error:  # noqa: BLE001 - one must not stop the others
                errors.append(error)
        if errors:
            raise CheckpointDeletionError(
                f"{len(errors)} checkpoints could not be deleted: {'; '.join(map(str, errors))}"
            ) from ExceptionGroup("deletions that failed", errors)

    # --- their parts

    def _check_options(self, dev_config: art.dev.TrainConfig) -> None:
        if dev_config:
            raise ConfigurationError(f"train option {min(dev_config)!r} is not known; remove it")

    def _target_step(self, config: art.TrainConfig) -> int:
        if config.target_step is None:
            raise ConfigurationError("config.target_step is not set; the frontend sets it")
        return config.target_step

    def _directory(self, model: AnyModel) -> Path:
        return art.checkpoints_dir(model)

    def _received(
        self, model: AnyModel, groups: list[art.TrajectoryGroup], config: art.TrainConfig
    ) -> None:
        received = Received(
            learning_rate=config.learning_rate,
            target_step=self._target_step(config),
            num_trajectories=sum(len(group.trajectories) for group in groups),
        )
        self.sent.setdefault(_key(model), []).append(received)

    def _trainable(self, groups: list[art.TrajectoryGroup]) -> list[art.TrajectoryGroup]:
        return [group for group in groups if is_trainable(group)]

    def _update(self, group: art.TrajectoryGroup, learning_rate: float) -> float:
        return learning_rate * math.fsum(t.reward for t in group.trajectories)

    def _event(self, change: float, num_steps: int) -> dict[str, float]:
        return {"loss": -change, "grad_norm": 1.0, "num_gradient_steps": float(num_steps)}

    async def _commit(self, model: AnyModel, step: int, weight: float) -> None:
        await run_blocking(checkpoints.save, self._directory(model), step, weight)
        await self._publish(model, step)

    def _doomed(self, directory: Path, kept: Collection[int]) -> list[int]:
        return [step for step in checkpoints.steps(directory) if step not in kept]

    def _fail(self, fault: Fault) -> None:
        if self.fault == fault:
            self.fault = None
            raise TrainingError(f"the reference was told to fail at {fault}")

    # --- optional capabilities

    async def register(self, model: AnyModel) -> None:
        """Make checkpoint 0, if there is no checkpoint."""
        if not checkpoints.steps(self._directory(model)):
            await run_blocking(checkpoints.save, self._directory(model), 0, 0.0)

    async def _get_step(self, model: AnyTrainableModel) -> int:
        return max(await self._list_checkpoint_steps(model), default=0)

    async def _list_checkpoint_steps(self, model: AnyTrainableModel) -> list[int]:
        return await run_blocking(checkpoints.steps, self._directory(model))

    async def _prepare_backend_for_training(
        self, model: AnyTrainableModel, config: art.dev.OpenAIServerConfig | None
    ) -> tuple[str, str]:
        del config
        endpoint = self._endpoints.get(_key(model))
        if endpoint is None:
            endpoint = self._endpoints[_key(model)] = await self._start(model)
        return endpoint.base_url, endpoint.api_key

    async def _start(self, model: AnyTrainableModel) -> Endpoint:
        endpoint = self.endpoint_class(model.name, model.base_model)
        await endpoint.start()
        for step in await self._list_checkpoint_steps(model):
            await endpoint.publish(step, checkpoints.step_dir(self._directory(model), step))
        return endpoint

    async def _publish(self, model: AnyModel, step: int) -> None:
        endpoint = self._endpoints.get(_key(model))
        if endpoint is not None:
            await endpoint.publish(step, checkpoints.step_dir(self._directory(model), step))

    async def _withdraw(self, model: AnyModel, step: int) -> None:
        endpoint = self._endpoints.get(_key(model))
        if endpoint is not None:
            await endpoint.withdraw(step)

    def _model_inference_name(self, model: AnyModel, step: int | None = None) -> str:
        return model.name if step is None else f"{model.name}@{step}"

    def _inference_failure(self, model: AnyModel) -> str | None:
        endpoint = self._endpoints.get(_key(model))
        return endpoint.failure if endpoint is not None else None

    def _default_base_path(self) -> str | None:
        return None

    async def _train_sft(
        self,
        model: AnyTrainableModel,
        trajectories: list[art.Trajectory],
        config: art.TrainSFTConfig,
        dev_config: Any,
        verbose: bool = False,  # noqa: ARG002 - it logs nothing
    ) -> AsyncIterator[dict[str, float]]:
        self._check_options(dev_config)
        del config
        step = await self._get_step(model)
        weight = await run_blocking(checkpoints.load, self._directory(model), step)
        yield {"loss": 1.0, "num_trajectories": float(len(trajectories))}
        await self._commit(model, step + 1, weight + len(trajectories))

    async def close(self) -> None:
        """Stop serving."""
        endpoints, self._endpoints = list(self._endpoints.values()), {}
        await asyncio.gather(*(endpoint.close() for endpoint in endpoints))


def _key(model: AnyModel) -> tuple[str, str]:
    return model.project, model.name
