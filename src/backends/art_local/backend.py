"""LocalBackend: trains and serves on this machine, each in a process of its own. Needs no torch to be imported."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from typing import TYPE_CHECKING, Literal, Self, cast

import art
from art import BackendTrainMixin, LocalTrainResult, backend_train
from art.adapter_kit.blocking import run_blocking
from art.adapter_kit.dependencies import require
from art.adapter_kit.sequences import build_sequences, num_action_tokens, token_counts
from art.errors import CheckpointDeletionError, ConfigurationError
from art_local.checkpoint_files import (
    clean_work_dir,
    copy_step,
    delete_steps,
    list_steps,
    step_dir,
    work_dir_of,
    work_path,
)
from art_local.devices import default_device
from art_local.server_options import ServerOptions
from art_local.services import BackendOptions, ModelServices
from art_local.train_options import TrainOptions
from art_local.train_request import TrainRequest, write_request

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator, Iterable
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Unpack

    from art import TrainConfig, TrajectoryGroup, dev
    from art.backend import AnyModel, AnyTrainableModel
    from art.training import BackendTrainOptions
    from art_local.service import ModelService
    from art_local.vllm_server import VllmServer

_NEEDED = ("torch", "transformers", "peft", "safetensors", "starlette", "uvicorn")


class LocalBackend(BackendTrainMixin):
    """Trains and serves models on this machine.

    Inference and training run in processes of their own, started when first needed and kept warm. Checkpoints
    lie under the model's books, `checkpoints/{step:04d}/`, each a peft adapter with its optimizer state.

    Use it as a context manager, or call `close`: either ends every process. They also end with this one,
    however it ends.
    """

    def __init__(  # noqa: PLR0913 - the options of a whole machine, all by name
        self,
        *,
        in_process: bool = False,
        path: str | Path | None = None,
        device: str | None = None,
        threads: int | None = None,
        inference: Literal["auto", "vllm", "embedded"] | VllmServer = "auto",
        vllm_python: str | os.PathLike[str] | None = None,
        sleep_while_training: bool | None = None,
        trainer_processes: int | None = None,
        shard_base: bool = False,
        start_timeout_s: float = 300.0,
        step_timeout_s: float = 3600.0,
    ) -> None:
        """Check that what is needed is installed; nothing is started yet.

        Args:
            in_process: Accepted for upstream's scripts; the work is always done in separate processes.
            path: Base path for models that name none of their own.
            device: Torch device of both processes; by default "cuda" where there is a GPU, else "cpu".
            threads: Torch threads of each process; by default one for the built-in models, for which more only
                cost, and all cores for others. vLLM on a CPU takes one by default.
            inference: The engine that answers. "auto" takes vLLM where `vllm_python` is given, or where it is installed
                for the device and the model is none of the built-in ones; the log says which it took and why. A
                `VllmServer` that you started is shared, and stays yours to close.
            vllm_python: The interpreter of the environment that has vLLM; by default this one.
            sleep_while_training: Whether vLLM gives the GPU's memory back while a step is trained; requests wait
                meanwhile. By default it does where both would be on the same GPU. A `VllmServer` of yours needs
                `enable_sleep_mode` for that, and must then have no other user.
            trainer_processes: Processes that train together on this machine, each with a GPU of its own; by default
                one, or one for each of a model's `trainer_gpu_ids`.
            shard_base: Whether each of them holds only a piece of the base model.
            start_timeout_s: How long a process may take to come up.
            step_timeout_s: How long one gradient step may take.

        Raises:
            MissingDependencyError: The extra `local` is not installed, or too old.
            ConfigurationError: The options contradict each other.
        """
        del in_process
        require(_NEEDED, extra="local", needed_by="LocalBackend", distribution="art-rl")
        self._path = None if path is None else str(path)
        self._services = ModelServices(
            BackendOptions(
                device=device or default_device(),
                threads=threads,
                inference=inference,
                vllm_python=vllm_python,
                sleep_while_training=sleep_while_training,
                trainer_processes=trainer_processes,
                shard_base=shard_base,
                start_timeout_s=start_timeout_s,
                step_timeout_s=step_timeout_s,
            )
        )

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
        options = await run_blocking(options.with_reference_directory, checkpoints)
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
                counts = {**token_counts(sequences), **service.times()}
                async with (
                    service.asleep(),
                    contextlib.aclosing(service.worker.train(request_dir)) as stream,
                ):
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
        await service.swap_in(step + 1)

    async def _delete_checkpoint_files(
        self, model: AnyTrainableModel, steps_to_keep: list[int]
    ) -> None:
        if not steps_to_keep:
            raise ConfigurationError("steps_to_keep is empty; at least the latest step must stay")
        checkpoints = art.checkpoints_dir(model)
        service = self._services.find(model)
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
            self._services.configure(service, ServerOptions.of(config))
            await service.server.serve(latest=await self._get_step(model))
        return service.server.base_url, service.server.api_key

    def _model_inference_name(self, model: AnyModel, step: int | None = None) -> str:
        return model.name if step is None else f"{model.name}@{step}"

    def _inference_failure(self, model: AnyModel) -> str | None:
        service = self._services.find(model)
        return service.server.failure() if service is not None else None

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
        await self._services.close()

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
        self._services.kill()

    def _service(self, model: AnyTrainableModel) -> ModelService:
        return self._services.get(model)
