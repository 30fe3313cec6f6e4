"""Train LLM agents with reinforcement learning: one frontend keeps the books, any backend does the GPU work.

Names are loaded when they are first used, so that importing this package is quick, silent and without side
effects. The adapters (`art.LocalBackend` ...) are found by their entry points, see `art.registry`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from art import adapter_kit as adapter_kit
    from art import backend as backend
    from art import batches as batches
    from art import dev, errors
    from art import gather as gather
    from art import messages as messages
    from art import model as model
    from art import registry as registry
    from art import testing as testing
    from art import training as training
    from art import trajectories as trajectories
    from art import types as types
    from art import utils as utils
    from art.backend import Backend
    from art.batches import trajectory_group_batches
    from art.books.paths import checkpoints_dir, model_dir
    from art.equality import same_groups
    from art.errors import ArtError
    from art.gather import gather_trajectories, gather_trajectory_groups
    from art.load import load_trajectories
    from art.local import LocalBackend as LocalBackend
    from art.model import Model, TrainableModel
    from art.rules.retention import RetentionResult, StepInfo
    from art.serverless import ServerlessBackend as ServerlessBackend
    from art.tinker import TinkerBackend as TinkerBackend
    from art.training import BackendTrainMixin, backend_train
    from art.trajectories import Trajectory, TrajectoryGroup
    from art.types import (
        LocalTrainResult,
        Messages,
        MessagesAndChoices,
        ServerlessTrainResult,
        Tools,
        TrainConfig,
        TrainResult,
        TrainSFTConfig,
    )
    from art.utils.retry import retry

    __version__: str

__all__ = [
    "ArtError",
    "Backend",
    "BackendTrainMixin",
    "LocalTrainResult",
    "Messages",
    "MessagesAndChoices",
    "Model",
    "RetentionResult",
    "ServerlessTrainResult",
    "StepInfo",
    "Tools",
    "TrainConfig",
    "TrainResult",
    "TrainSFTConfig",
    "TrainableModel",
    "Trajectory",
    "TrajectoryGroup",
    "backend_train",
    "checkpoints_dir",
    "dev",
    "errors",
    "gather_trajectories",
    "gather_trajectory_groups",
    "load_trajectories",
    "model_dir",
    "retry",
    "same_groups",
    "trajectory_group_batches",
]

_MODULES = {
    "ArtError": "art.errors",
    "Backend": "art.backend",
    "BackendTrainMixin": "art.training",
    "LocalTrainResult": "art.types",
    "Messages": "art.types",
    "MessagesAndChoices": "art.types",
    "Model": "art.model",
    "RetentionResult": "art.rules.retention",
    "ServerlessTrainResult": "art.types",
    "StepInfo": "art.rules.retention",
    "Tools": "art.types",
    "TrainConfig": "art.types",
    "TrainResult": "art.types",
    "TrainSFTConfig": "art.types",
    "TrainableModel": "art.model",
    "Trajectory": "art.trajectories",
    "TrajectoryGroup": "art.trajectories",
    "backend_train": "art.training",
    "checkpoints_dir": "art.books.paths",
    "gather_trajectories": "art.gather",
    "gather_trajectory_groups": "art.gather",
    "load_trajectories": "art.load",
    "model_dir": "art.books.paths",
    "retry": "art.utils.retry",
    "same_groups": "art.equality",
    "trajectory_group_batches": "art.batches",
    # Adapters are not in `__all__`: a star import must not fail for one that is not installed.
    "LocalBackend": "art.local",
    "ServerlessBackend": "art.serverless",
    "TinkerBackend": "art.tinker",
}

# Reachable as `art.utils` and so on after a plain `import art`.
_SUBMODULES = frozenset(
    {
        "adapter_kit",
        "backend",
        "batches",
        "dev",
        "errors",
        "gather",
        "local",
        "messages",
        "model",
        "registry",
        "serverless",
        "testing",
        "tinker",
        "tinker_native",
        "training",
        "trajectories",
        "types",
        "utils",
    }
)

if not TYPE_CHECKING:  # a checker would take any misspelt name for one that this function knows

    def __getattr__(name: str) -> object:
        if name == "__version__":
            from importlib.metadata import version

            value: object = version("art-rl")
        elif name in _MODULES:
            value = getattr(import_module(_MODULES[name]), name)
        elif name in _SUBMODULES:
            return import_module(f"art.{name}")
        else:
            raise AttributeError(f"module 'art' has no attribute {name!r}")
        globals()[name] = value  # found at once the next time
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_SUBMODULES, "LocalBackend"})
