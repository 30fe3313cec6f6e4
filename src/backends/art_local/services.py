"""The services of a backend's models, made from the backend's options and each model's own."""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast

import art
from art.errors import ConfigurationError
from art_local.base_model import BUILTIN_MODELS, resolve_base_model
from art_local.config import WorkerSettings
from art_local.devices import gpu_number
from art_local.inference_choice import choose_inference
from art_local.service import ModelService
from art_local.service_config import ServiceConfig
from art_local.vllm_server import VllmServer
from art_local.vllm_servers import VllmServers

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from art.backend import AnyModel, AnyTrainableModel
    from art_local.inference_choice import Engine
    from art_local.server_options import ServerOptions

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class BackendOptions:
    """The arguments of LocalBackend that hold for every model; see there."""

    device: str
    threads: int | None
    inference: Literal["auto", "vllm", "embedded"] | VllmServer
    vllm_python: str | os.PathLike[str] | None
    sleep_while_training: bool | None
    trainer_processes: int | None
    shard_base: bool
    start_timeout_s: float
    step_timeout_s: float


class ModelServices:
    """The services by model, and the vLLM servers that they share.

    Args:
        options: What holds for all of them.
    """

    def __init__(self, options: BackendOptions) -> None:
        self._options = options
        self._services: dict[tuple[str, str], ModelService] = {}
        self._vllm_servers = VllmServers(
            options.vllm_python, options.threads, options.start_timeout_s
        )

    def find(self, model: AnyModel) -> ModelService | None:
        """Return a model's service, None where it has none yet."""
        return self._services.get((model.project, model.name))

    def get(self, model: AnyTrainableModel) -> ModelService:
        """Return a model's service, making one on first use.

        Raises:
            ConfigurationError: An option cannot be honoured, or a model of this name lies in another directory.
        """
        checkpoints = art.checkpoints_dir(model).absolute()
        service = self.find(model)
        if service is None:
            made = ModelService(self._config(model, checkpoints))
            # Not an assignment: another thread may have made one meanwhile.
            return self._services.setdefault((model.project, model.name), made)
        if service.config.checkpoints != checkpoints:
            raise ConfigurationError(
                f"this backend already works on model {model.name!r} of project {model.project!r} in "
                f"{service.config.checkpoints.parent}; for the one in {checkpoints.parent} use another "
                "LocalBackend, or close this one first"
            )
        return service

    def configure(self, service: ModelService, options: ServerOptions) -> None:
        """Tell an inference server where to listen and, if vLLM is the engine, which server answers."""
        service.server.listen_at(options.gateway)
        if service.config.engine == "embedded":
            options.warn_without_vllm()
        elif service.server.vllm is None:
            service.server.vllm = self._vllm_server(service.config, options)

    async def close(self) -> None:
        """End every process. Repeatable."""
        services, self._services = list(self._services.values()), {}
        await asyncio.gather(*(service.close() for service in services))
        await self._vllm_servers.close()

    def kill(self) -> None:
        """End every process, from code that cannot await."""
        for service in self._services.values():
            service.kill()
        self._services = {}
        self._vllm_servers.kill()

    def _config(self, model: AnyTrainableModel, checkpoints: Path) -> ServiceConfig:
        options = self._options
        engine = self._choose_engine(model)
        internal_config = dict(cast("dict[str, Any]", model._internal_config or {}))
        sleeps = engine == "vllm" and self._sleeps(internal_config.get("trainer_gpu_ids") or ())
        # Options of vLLM, which the worker would say have no effect.
        engine_args = internal_config.pop("engine_args", None) if engine == "vllm" else None
        processes = options.trainer_processes
        return ServiceConfig(
            model_name=model.name,
            base_model_name=model.base_model,
            checkpoints=checkpoints,
            worker=WorkerSettings.from_internal_config(
                resolve_base_model(model.base_model),
                internal_config,
                device=options.device,
                threads=options.threads or _default_threads(model.base_model),
                shard_base=options.shard_base,
                offload_when_idle=sleeps and options.device.startswith("cuda"),
                **({"num_processes": processes} if processes is not None else {}),
            ),
            engine=engine,
            engine_args={**(engine_args or {}), **({"enable_sleep_mode": True} if sleeps else {})},
            sleeps_while_training=sleeps,
            start_timeout_s=options.start_timeout_s,
            step_timeout_s=options.step_timeout_s,
        )

    def _sleeps(self, trainer_gpu_ids: Sequence[int]) -> bool:
        """Return whether vLLM is to leave the GPU while a step is trained."""
        options = self._options
        if options.sleep_while_training is not None:
            return options.sleep_while_training
        is_ours = not isinstance(options.inference, VllmServer)
        if options.device == "cpu" or options.shard_base or not is_ours:
            return False
        vllm_gpu = gpu_number(options.device)
        return vllm_gpu in (trainer_gpu_ids or [*range(options.trainer_processes or 1), vllm_gpu])

    def _choose_engine(self, model: AnyTrainableModel) -> Engine:
        if isinstance(self._options.inference, VllmServer):
            return "vllm"
        choice = choose_inference(
            self._options.inference,
            base_model=model.base_model,
            device=self._options.device,
            python=self._options.vllm_python,
        )
        logger.info("model %r is served by %s: %s", model.name, choice.engine, choice.reason)
        return choice.engine

    def _vllm_server(self, config: ServiceConfig, options: ServerOptions) -> VllmServer:
        if isinstance(self._options.inference, VllmServer):
            _check_server(self._options.inference, config)
            options.warn_without_vllm()  # what the user's own server does was said when it was made
            return self._options.inference
        # A server that sleeps while one model trains cannot answer for another.
        owner = str(config.checkpoints) if config.sleeps_while_training else ""
        if config.worker.offload_when_idle and self._vllm_servers.has_others(owner):
            raise ConfigurationError(
                f"model {config.model_name!r} would be the second with a vLLM of its own on one GPU: one that sleeps while "
                "a model trains serves no other. Use LocalBackend(sleep_while_training=False) with engine_args that leave "
                "room for the trainer (gpu_memory_utilization), or another GPU"
            )
        engine_args = {**config.engine_args, **options.engine_args}
        return self._vllm_servers.get(
            config.worker, replace(options, engine_args=engine_args), owner=owner
        )


def _check_server(server: VllmServer, config: ServiceConfig) -> None:
    """Check that a server that the user started can serve a model."""
    if server.base_model != config.worker.base_model:
        raise ConfigurationError(
            f"the VllmServer serves {server.base_model}, but the base model of {config.model_name!r} is "
            f"{config.worker.base_model}; give each base model a server of its own"
        )
    if config.worker.lora.r > server.max_lora_rank:
        raise ConfigurationError(
            f"the adapter of {config.model_name!r} has rank {config.worker.lora.r}, and the VllmServer serves "
            f"{server.max_lora_rank} at most; start it with VllmServer(max_lora_rank={config.worker.lora.r})"
        )
    if config.sleeps_while_training and not server.can_sleep:
        raise ConfigurationError(
            "sleep_while_training needs a VllmServer with engine_args={'enable_sleep_mode': True}"
        )


def _default_threads(base_model: str) -> int:
    return 1 if base_model in BUILTIN_MODELS else os.cpu_count() or 1
