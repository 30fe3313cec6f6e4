"""What the two processes of one model need to know."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from art_local.config import WorkerSettings
    from art_local.inference_choice import Engine


@dataclass(frozen=True)
class ServiceConfig:
    """What the two processes of a model need to know.

    Attributes:
        model_name: The name that requests use, alone or with `@{step}`.
        base_model_name: The base model as the user named it; it is served under that name.
        checkpoints: The directory of the step directories.
        worker: What the training worker is told; device and threads hold for the embedded engine too.
        engine: Which engine answers.
        engine_args: What the model's own options ask of vLLM's engine.
        sleeps_while_training: Whether vLLM gives the GPU's memory back while a step is trained.
        start_timeout_s: How long a process may take to come up.
        step_timeout_s: How long a gradient step may take.
        drain_s: How long requests in flight may go on after their step was deleted.
        max_loaded_adapters: How many steps the server keeps in memory.
    """

    model_name: str
    base_model_name: str
    checkpoints: Path
    worker: WorkerSettings
    engine: Engine = "embedded"
    engine_args: dict[str, Any] = field(default_factory=dict)
    sleeps_while_training: bool = False
    start_timeout_s: float = 300.0
    step_timeout_s: float = 3600.0
    drain_s: float = 30.0
    max_loaded_adapters: int = 8
