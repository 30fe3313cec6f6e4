"""LocalBackend: trains and serves on this machine, each in a process of its own. Needs no torch to be imported."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from typing import TYPE_CHECKING, Any, Self, cast

import art
from art import BackendTrainMixin, LocalTrainResult, backend_train
from art.adapter_kit.blocking import run_blocking
from art.adapter_kit.dependencies import require
from art.adapter_kit.sequences import build_sequences, num_action_tokens, token_counts
from art.errors import CheckpointDeletionError, ConfigurationError
from art_local.base_model import BUILTIN_MODELS, resolve_base_model
from art_local.checkpoint_files import (
    clean_work_dir,
    copy_step,
    delete_steps,
    list_steps,
    step_dir,
    work_dir_of,
    work_path,
)
from art_local.config import WorkerSettings
from art_local.service import ModelService
from art_local.service_config import ServiceConfig
from art_local.train_options import TrainOptions
from art_local.train_request import TrainRequest, write_request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Unpack

    from art import TrainConfig, TrajectoryGroup, dev
    from art.backend import AnyModel, AnyTrainableModel
    from art.training import BackendTrainOptions

_NEEDED = ("torch", "transformers", "peft", "safetensors", "starlette", "uvicorn")


class LocalBackend(BackendTrainMixin):
    """Trains and serves models on this machine.

    Inference and training run in processes of their own, started when first needed and kept warm. Checkpoints
    lie under the model's books, `checkpoints/{step:04d}/`, each a peft adapter with its optimizer state.

    Use it as a context manager, or call `close`: either ends every process. They also end with this one,
    however it ends.
    """

    def __init__(
        self,
        *,
        in_process: bool = False,
        path: str | Path | None = None,
        device: str = "cpu",
        threads: int | None = None,
        start_timeout_s: float = 300.0,
        step_timeout_s: float = 3600.0,
    ) -> None:
        """Check that what is needed is installed; nothing is started yet.

        Args:
            in_process: Accepted for upstream's scripts; the work is always done in separate processes.
            path: Base path for models that name none of their own.
            device: Torch device of both processes.
            threads: Torch threads of each process; by default one for the built-in model, for which more only
                cost, and all cores for others.
            start_timeout_s: How long a process may take to come up.
            step_timeout_s: How long one gradient step may take.

        Raises:
            MissingDependencyError: The extra `local` is not installed, or too old.
        """
        del in_process
        require(_NEEDED, extra="local", needed_by="LocalBackend", distribution="art-rl")
        self._path = None if path is None else str(path)
        self._device = device
        self._threads = threads
        self._start_timeout_s = start_timeout_s
        self._step_timeout_s = step_timeout_s
        self._services: dict[tuple[str, str], ModelService] = {}

    # --- the two methods ---

    async def _train_model(
        self,
        model: AnyTrainableModel,
        trajectory_groups: list[TrajectoryGroup],
        config: TrainConfig,
        dev_config: dev.TrainConfig,
        verbose: bool = False,  # noqa: ARG002 - the children's logs are at debug level already
    ) -> AsyncIterator[dict[str, float]]:
        options = TrainOptions.from_dev(dev_config, config)
        service = self._service(model)
        checkpoints = service.config.checkpoints
        work_dir = work_dir_of(checkpoints)
        step = await self._get_step(model) if config.target_step is None else config.target_step - 1
        await service.serve(step)
        sequences = await run_blocking(
            build_sequences,
            trajectory_groups,
            scale_rewards=options.scale_rewards,
            allow_training_without_logprobs=options.allow_training_without_logprobs,
        )
        if sequences:
            request = TrainRequest(
                from_checkpoint=step_dir(checkpoints, step),
                from_step=step,
                target_step=step + 1,
                to_checkpoint=step_dir(checkpoints, step + 1),
                work_dir=work_dir,
                learning_rate=config.learning_rate,
                num_action_tokens=await asyncio.to_thread(num_action_tokens, trajectory_groups),
                options=options,
            )
            request_dir = work_path(work_dir, "request")
            try:
                await run_blocking(write_request, request_dir, request, sequences)
                # They are of the whole call, so they go with its first gradient step.
                counts = token_counts(sequences)
                async with contextlib.aclosing(service.worker.train(request_dir)) as stream:
                    async for metrics in stream:
                        yield {**counts, **metrics}
                        counts = {}
            finally:
                shutil.rmtree(request_dir, ignore_errors=True)
        else:
            await run_blocking(
                copy_step,
                step_dir(checkpoints, step),
                step_dir(checkpoints, step + 1),
                work_dir,
            )
        await service.serve(step + 1)

    async def _delete_checkpoint_files(
        self, model: AnyTrainableModel, steps_to_keep: list[int]
    ) -> None:
        if not steps_to_keep:
            raise ConfigurationError("steps_to_keep is empty; at least the latest step must stay")
        checkpoints = art.checkpoints_dir(model)
        service = self._services.get(_key(model))
        served = await service.withdraw_all_but(steps_to_keep) if service is not None else {}
        errors: list[Exception] = [*served.values()]
        errors += await run_blocking(
            delete_steps, checkpoints, [*steps_to_keep, *served], work_dir_of(checkpoints)
        )
        if errors:
            raise CheckpointDeletionError(
                f"{len(errors)} of the checkpoints in {checkpoints} could not be deleted (the others are "
                f"gone): {'; '.join(map(str, errors))}"
            ) from ExceptionGroup("deletions that failed", errors)

    # --- optional capabilities ---

    async def register(self, model: AnyModel) -> None:
        """Make step 0 if the model has no checkpoint yet, and let the inference server start meanwhile."""
        if not model.trainable:
            return
        service = self._service(cast("AnyTrainableModel", model))
        checkpoints = service.config.checkpoints
        async with service.exclusive():
            service.server.child.spawn()
            work_dir = work_dir_of(checkpoints)
            await run_blocking(clean_work_dir, work_dir)
            if not await run_blocking(list_steps, checkpoints):
                await service.worker.create_step_0(work_dir)

    async def _prepare_backend_for_training(
        self, model: AnyTrainableModel, config: dev.OpenAIServerConfig | None
    ) -> tuple[str, str]:
        service = self._service(model)
        async with service.exclusive():
            service.server.listen_at(config)
            await service.server.serve(latest=await self._get_step(model))
        return service.server.base_url, service.server.api_key

    def _model_inference_name(self, model: AnyModel, step: int | None = None) -> str:
        return model.name if step is None else f"{model.name}@{step}"

    def _inference_failure(self, model: AnyModel) -> str | None:
        service = self._services.get(_key(model))
        return service.server.child.failure() if service is not None else None

    async def _get_step(self, model: AnyTrainableModel) -> int:
        return max(await self._list_checkpoint_steps(model), default=0)

    async def _list_checkpoint_steps(self, model: AnyTrainableModel) -> list[int]:
        return await run_blocking(list_steps, art.checkpoints_dir(model))

    def _default_base_path(self) -> str | None:
        return self._path

    async def train(
        self,
        model: AnyTrainableModel,
        trajectory_groups: Iterable[TrajectoryGroup],
        **options: Unpack[BackendTrainOptions],
    ) -> LocalTrainResult:
        """Train one step and write no row of metrics; see `art.backend_train`."""
        result = await backend_train(model, trajectory_groups, backend=self, **options)
        path = step_dir(art.checkpoints_dir(model), result.step)
        return LocalTrainResult(result.step, result.metrics, checkpoint_path=str(path))

    async def close(self) -> None:
        """End every process. Repeatable; a model that is registered again starts them again."""
        services, self._services = list(self._services.values()), {}
        await asyncio.gather(*(service.close() for service in services))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for service in self._services.values():
            service.kill()
        self._services = {}

    def _service(self, model: AnyTrainableModel) -> ModelService:
        """Return the model's service, making one on first use."""
        checkpoints = art.checkpoints_dir(model).absolute()
        service = self._services.get(_key(model))
        if service is None:
            config = ServiceConfig(
                model_name=model.name,
                base_model_name=model.base_model,
                checkpoints=checkpoints,
                worker=WorkerSettings.from_internal_config(
                    resolve_base_model(model.base_model),
                    cast("dict[str, Any] | None", model._internal_config),
                    device=self._device,
                    threads=self._threads or _default_threads(model.base_model),
                ),
                start_timeout_s=self._start_timeout_s,
                step_timeout_s=self._step_timeout_s,
            )
            # Not an assignment: another thread may have made one meanwhile.
            service = self._services.setdefault(_key(model), ModelService(config))
        elif service.config.checkpoints != checkpoints:
            raise ConfigurationError(
                f"this backend already works on model {model.name!r} of project {model.project!r} in "
                f"{service.config.checkpoints.parent}; for the one in {checkpoints.parent} use another "
                "LocalBackend, or close this one first"
            )
        return service


def _default_threads(base_model: str) -> int:
    return 1 if base_model in BUILTIN_MODELS else os.cpu_count() or 1


def _key(model: AnyModel) -> tuple[str, str]:
    return model.project, model.name
