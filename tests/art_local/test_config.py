from __future__ import annotations

import dataclasses
import json
import logging
from typing import Any

import pytest

from art.errors import ConfigurationError
from art.types import TrainConfig
from art_local import config as config_module
from art_local.config import (
    LoraSettings,
    OptimizerSettings,
    TrainOptions,
    WorkerSettings,
    server_options,
)


def options(**dev_config: Any) -> TrainOptions:
    """The options of a train call with these names."""
    return TrainOptions.from_dev(dev_config, TrainConfig())


@pytest.mark.parametrize(
    ("given", "bounds"),
    [
        ({}, (1.0, 4.0)),
        ({"ppo": True}, (0.2, 0.2)),
        ({"epsilon": 0.3}, (0.3, 4.0)),
        ({"epsilon": 0.3, "epsilon_high": None}, (0.3, 0.3)),
        ({"ppo": True, "epsilon": 0.1}, (0.1, 0.1)),
        ({"ppo": True, "epsilon_high": 0.28}, (0.2, 0.28)),
    ],
)
def test_clip_bounds_default_as_upstream(
    given: dict[str, Any], bounds: tuple[float, float]
) -> None:
    """The ratio lies in [0, 5], or within 0.2 of 1 with `ppo`, unless bounds are given."""
    read = options(**given)
    assert (read.epsilon, read.epsilon_high) == bounds


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("advantage_balance", 0.5),
        ("importance_sampling_level", "sequence"),
        ("kimi_k2_tau", 0.1),
        ("kl_penalty_coef", 0.1),
        ("kl_ref_adapter_path", "/somewhere"),
        ("mask_prob_ratio", True),
        ("max_negative_advantage_importance_sampling_weight", 2.0),
        ("truncated_importance_sampling", 2.0),
        ("no_such_option", 1),
    ],
)
def test_an_option_that_would_have_no_effect_is_refused_by_name(name: str, value: Any) -> None:
    """A user never trains with an option that is silently ignored."""
    with pytest.raises(ConfigurationError, match=name):
        options(**{name: value})


@pytest.mark.parametrize("name", ["beta", "kl_penalty_coef"])
def test_a_kl_penalty_of_the_train_config_is_refused_by_name(name: str) -> None:
    """Also where it comes with the config instead of the options."""
    with pytest.raises(ConfigurationError, match=name):
        TrainOptions.from_dev({}, TrainConfig.model_validate({name: 0.1}))


def test_upstreams_defaults_are_accepted() -> None:
    """Spelling out the defaults of every option is fine."""
    spelled_out = options(
        advantage_balance=0.0,
        allow_training_without_logprobs=False,
        importance_sampling_level="token",
        kimi_k2_tau=None,
        kl_penalty_coef=0.0,
        mask_prob_ratio=False,
        max_negative_advantage_importance_sampling_weight=None,
        ppo=False,
        scale_rewards=True,
        truncated_importance_sampling=None,
    )
    assert spelled_out == TrainOptions()


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf")])
def test_a_clip_bound_that_is_no_bound_is_refused(value: float) -> None:
    """Bounds are finite and not negative."""
    with pytest.raises(ConfigurationError, match="epsilon_high"):
        options(epsilon_high=value)


def test_a_hint_warns_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options about upstream's engine are accepted at any value, with one warning each."""
    monkeypatch.setattr(config_module, "_warned", set())
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            options(logprob_calculation_chunk_size=512, plot_tensors=True)
    assert sorted(caplog.messages) == [
        "train option logprob_calculation_chunk_size has no effect with the local backend",
        "train option plot_tensors has no effect with the local backend",
    ]


def test_worker_settings_come_from_the_models_internal_config() -> None:
    """`peft_args` and `trainer_args` have an effect under upstream's names."""
    settings = WorkerSettings.from_internal_config(
        "base",
        {
            "peft_args": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], "random_state": 7},
            "trainer_args": {"max_grad_norm": 0.1, "adam_beta2": 0.95, "weight_decay": 0.1},
        },
        device="cpu",
    )
    assert settings == WorkerSettings(
        "base",
        lora=LoraSettings(r=4, alpha=8, target_modules=("q_proj",)),
        optimizer=OptimizerSettings(betas=(0.9, 0.95), weight_decay=0.1, max_grad_norm=0.1),
        seed=7,
    )
    assert WorkerSettings.from_internal_config("base", None) == WorkerSettings("base")


@pytest.mark.parametrize(
    "peft_args", [{"lora_dropout": 0.1}, {"use_rslora": True}, {"r": 0}, {"no_such": 1}]
)
def test_an_adapter_that_cannot_be_trained_is_refused(peft_args: dict[str, Any]) -> None:
    """Options of the adapter are honoured or refused."""
    with pytest.raises(ConfigurationError):
        WorkerSettings.from_internal_config("base", {"peft_args": peft_args})


def test_settings_travel_as_json() -> None:
    """The worker reads the settings that the parent sent."""
    settings = WorkerSettings(
        "base", lora=LoraSettings(target_modules=("q_proj", "v_proj")), seed=3
    )
    message = json.loads(json.dumps(dataclasses.asdict(settings)))
    assert WorkerSettings.from_message(message) == settings
    assert WorkerSettings.from_message({"base_model": "base"}) == WorkerSettings("base")


def test_engine_sections_of_upstream_warn_and_others_are_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Memory settings of upstream's engine change nothing here and say so; what cannot be honoured is an error."""
    with caplog.at_level(logging.WARNING, "art_local"):
        WorkerSettings.from_internal_config("m", {"engine_args": {"gpu_memory_utilization": 0.8}})
    assert "engine_args.gpu_memory_utilization has no effect" in caplog.text

    for name, value in (("trainer_gpu_ids", [0]), ("nonsense", 1)):
        with pytest.raises(ConfigurationError, match=name):
            WorkerSettings.from_internal_config("m", {name: value})


def test_server_options_of_upstream_are_taken_or_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Host, port and key are used; what speaks to another engine says that it has no effect."""
    options = {"server_args": {"port": 8000, "tool_call_parser": "hermes"}, "log_file": "x.log"}

    with caplog.at_level(logging.WARNING, "art_local"):
        assert server_options(options) == {"port": 8000}

    assert "server_args.tool_call_parser has no effect" in caplog.text
    assert "log_file has no effect" in caplog.text
    assert server_options(None) == {}
