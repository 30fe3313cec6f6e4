"""What the two processes of one model need to know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from art_local.config import WorkerSettings


@dataclass(frozen=True)
class ServiceConfig:
    """What the two processes of a model need to know.

    Attributes:
        model_name: The name that requests use, alone or with `@{step}`.
        base_model_name: The base model as the user named it; it is served under that name.
        checkpoints: The directory of the step directories.
        worker: What the training worker is told; device and threads hold for the server too.
        start_timeout_s: How long a process may take to come up.
        step_timeout_s: How long a gradient step may take.
        drain_s: How long requests in flight may go on after their step was deleted.
        max_loaded_adapters: How many steps the server keeps in memory.
    """

    model_name: str
    base_model_name: str
    checkpoints: Path
    worker: WorkerSettings
    start_timeout_s: float = 300.0
    step_timeout_s: float = 3600.0
    drain_s: float = 30.0
    max_loaded_adapters: int = 8
