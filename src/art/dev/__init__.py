"""Unstable options by upstream's names."""

from art.dev.options import (
    EngineArgs,
    InitArgs,
    InternalModelConfig,
    OpenAIServerConfig,
    PeftArgs,
    ServerArgs,
    TinkerArgs,
    TinkerNativeArgs,
    TinkerTrainingClientArgs,
    TrainConfig,
    TrainerArgs,
    TrainSFTConfig,
)

__all__ = [
    "EngineArgs",
    "InitArgs",
    "InternalModelConfig",
    "OpenAIServerConfig",
    "PeftArgs",
    "ServerArgs",
    "TinkerArgs",
    "TinkerNativeArgs",
    "TinkerTrainingClientArgs",
    "TrainConfig",
    "TrainSFTConfig",
    "TrainerArgs",
]
