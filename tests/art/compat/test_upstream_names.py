"""The names, import paths and parameters that scripts for upstream use."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pydantic
import pytest

import art
from art.gather import GatherContext

SPELLINGS = [
    ("art", "Backend"),
    ("art", "Messages"),
    ("art", "MessagesAndChoices"),
    ("art", "Model"),
    ("art", "Tools"),
    ("art", "TrainConfig"),
    ("art", "TrainResult"),
    ("art", "TrainSFTConfig"),
    ("art", "LocalTrainResult"),
    ("art", "ServerlessTrainResult"),
    ("art", "TrainableModel"),
    ("art", "Trajectory"),
    ("art", "TrajectoryGroup"),
    ("art", "dev"),
    ("art", "gather_trajectories"),
    ("art", "gather_trajectory_groups"),
    ("art", "retry"),
    ("art", "trajectory_group_batches"),
    ("art.backend", "Backend"),
    ("art.batches", "trajectory_group_batches"),
    ("art.dev", "EngineArgs"),
    ("art.dev", "InitArgs"),
    ("art.dev", "InternalModelConfig"),
    ("art.dev", "OpenAIServerConfig"),
    ("art.dev", "PeftArgs"),
    ("art.dev", "ServerArgs"),
    ("art.dev", "TinkerArgs"),
    ("art.dev", "TinkerNativeArgs"),
    ("art.dev", "TinkerTrainingClientArgs"),
    ("art.dev", "TrainConfig"),
    ("art.dev", "TrainSFTConfig"),
    ("art.dev", "TrainerArgs"),
    ("art.gather", "GatherContext"),
    ("art.gather", "gather_trajectories"),
    ("art.gather", "gather_trajectory_groups"),
    ("art.gather", "get_gather_context"),
    ("art.gather", "record_metrics"),
    ("art.gather", "set_gather_context"),
    ("art.gather", "wrap_group_awaitable"),
    ("art.model", "Model"),
    ("art.model", "TrainableModel"),
    ("art.trajectories", "History"),
    ("art.trajectories", "PydanticException"),
    ("art.trajectories", "Trajectory"),
    ("art.trajectories", "TrajectoryGroup"),
    ("art.types", "Messages"),
    ("art.types", "MessagesAndChoices"),
    ("art.types", "Tools"),
    ("art.types", "TrainConfig"),
    ("art.types", "TrainResult"),
    ("art.utils", "iterate_dataset"),
    ("art.utils", "limit_concurrency"),
    ("art.utils", "retry"),
    ("art.utils.iterate_dataset", "DatasetBatch"),
    ("art.utils.iterate_dataset", "iterate_dataset"),
    ("art.utils.limit_concurrency", "limit_concurrency"),
    ("art.utils.litellm", "convert_litellm_choice_to_openai"),
    ("art.utils.retry", "retry"),
    ("art.utils.strip_logprobs", "strip_logprobs"),
]


@pytest.mark.parametrize(("module", "name"), SPELLINGS)
def test_an_import_of_upstream_works(module: str, name: str) -> None:
    """`from MODULE import NAME` finds it, and a class or function is the same by every path."""
    found = getattr(importlib.import_module(module), name)
    assert found is not None
    if module.startswith("art.") and name in art.__all__ and module != "art.dev":
        assert found is getattr(art, name)


@pytest.mark.local
@pytest.mark.parametrize("module", ["art", "art.local", "art.local.backend"])
def test_the_local_backend_is_one_class_by_every_spelling(module: str) -> None:
    """Upstream's three import paths lead to the adapter's own class."""
    from art_local import LocalBackend

    assert importlib.import_module(module).LocalBackend is LocalBackend


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("art", "ServerlessBackend"),
        ("art", "TinkerBackend"),
        ("art.serverless", "ServerlessBackend"),
        ("art.serverless.backend", "ServerlessBackend"),
        ("art.tinker", "TinkerBackend"),
        ("art.tinker.backend", "TinkerBackend"),
        ("art.tinker_native", "TinkerNativeBackend"),
        ("art.tinker_native.backend", "TinkerNativeBackend"),
    ],
)
def test_a_backend_that_is_not_shipped_is_an_import_error(module: str, name: str) -> None:
    """The spelling exists, and the error tells that this version has no such adapter."""
    with pytest.raises(ImportError, match="does not ship"):
        getattr(importlib.import_module(module), name)


def keywords(function: Any) -> dict[str, Any]:
    """Parameters by name, with their defaults."""
    parameters = inspect.signature(function).parameters
    return {name: parameter.default for name, parameter in parameters.items() if name != "self"}


REQUIRED = inspect.Parameter.empty


def test_parameters_of_gathering() -> None:
    """Names and defaults are upstream's."""
    assert keywords(art.gather_trajectory_groups) == {
        "groups": REQUIRED,
        "pbar_desc": "gather",
        "pbar_total_completion_tokens": False,
        "max_exceptions": 0,
        "max_metrics": None,
        "after_each": None,
    }
    assert keywords(art.gather_trajectories) == {
        "trajectories": REQUIRED,
        "pbar_desc": "gather",
        "pbar_total_completion_tokens": False,
        "max_exceptions": 0,
    }
    assert keywords(art.trajectory_group_batches) == {
        "groups": REQUIRED,
        "batch_size": REQUIRED,
        "max_batch_exceptions": 0,
        "max_concurrent_batches": 4,
        "skip_batches": 0,
        "pbar_desc": "batches",
        "pbar_total_completion_tokens": False,
    }


def test_fields_of_a_gather_context() -> None:
    """Upstream's six come first, in its order."""
    assert list(keywords(GatherContext))[:6] == [
        "pbar",
        "metric_sums",
        "metric_divisors",
        "max_metrics",
        "max_exceptions",
        "increment_pbar",
    ]


def test_parameters_of_the_helpers() -> None:
    """Names and defaults are upstream's."""
    assert keywords(art.retry) == {
        "max_attempts": 3,
        "delay": 0.25,
        "backoff_factor": 2.0,
        "exceptions": (Exception,),
        "on_retry": None,
    }
    assert keywords(art.utils.iterate_dataset) == {
        "dataset": REQUIRED,
        "groups_per_step": 1,
        "num_epochs": 1,
        "initial_step": 0,
        "use_tqdm": True,
    }
    assert keywords(art.utils.limit_concurrency) == {"n": REQUIRED, "derive_key": None}


def test_parameters_of_a_trajectory_group() -> None:
    """The first one is positional, the others are keywords."""
    assert list(keywords(art.TrajectoryGroup.__init__)) == [
        "trajectories",
        "exceptions",
        "metadata",
        "metrics",
        "logs",
    ]


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        (
            art.Trajectory,
            [
                "messages_and_choices",
                "tools",
                "additional_histories",
                "reward",
                "initial_policy_version",
                "final_policy_version",
                "metrics",
                "auto_metrics",
                "metadata",
                "logs",
                "start_time",
            ],
        ),
        (art.TrajectoryGroup, ["trajectories", "exceptions", "metadata", "metrics", "logs"]),
        (art.TrainConfig, ["learning_rate", "beta", "kl_penalty_coef"]),
        (art.TrainSFTConfig, ["learning_rate", "batch_size"]),
    ],
)
def test_fields_of_upstreams_models(model: type[pydantic.BaseModel], fields: list[str]) -> None:
    """Every field that scripts set or read is there."""
    assert set(fields) <= set(model.model_fields)


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        (
            art.Model,
            [
                "name",
                "project",
                "entity",
                "id",
                "config",
                "inference_api_key",
                "inference_base_url",
                "inference_model_name",
                "base_path",
                "report_metrics",
                "trainable",
            ],
        ),
        (art.TrainableModel, ["base_model", "run_id", "run_name", "lora_config"]),
    ],
)
def test_fields_of_models(model: type[pydantic.BaseModel], fields: list[str]) -> None:
    """The models' fields carry upstream's names."""
    assert set(fields) <= set(model.model_fields)


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        (art.Model.log, ["trajectories", "split", "metrics", "step"]),
        (art.Model.register, ["backend"]),
        (art.TrainableModel.register, ["backend", "_openai_client_config"]),
        (art.Model.get_inference_name, ["step"]),
        (art.TrainableModel.train, ["trajectory_groups", "config", "_config", "verbose"]),
        (art.TrainableModel.delete_checkpoints, ["best_checkpoint_metric"]),
        (art.TrainableModel.get_step, []),
    ],
)
def test_parameters_of_a_models_methods(method: Any, parameters: list[str]) -> None:
    """Upstream's parameters come first, in its order; further ones may follow."""
    assert list(keywords(method))[: len(parameters)] == parameters


def test_parameters_of_the_second_spelling_of_training() -> None:
    """`backend.train(model, groups, ...)` takes the model and the groups by position."""
    assert list(keywords(art.BackendTrainMixin.train))[:2] == ["model", "trajectory_groups"]


def test_methods_of_a_trajectory() -> None:
    """Names and parameters that rollouts use."""
    assert keywords(art.Trajectory.finish) == {}
    assert keywords(art.Trajectory.messages) == {}
    assert keywords(art.Trajectory.for_logging) == {}
    assert list(keywords(art.Trajectory.log)) == ["message"]
    assert list(keywords(art.Trajectory.track_duration)) == ["metric_name"]
