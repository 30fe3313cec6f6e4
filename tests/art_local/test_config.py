from __future__ import annotations

import dataclasses
import json
import logging
from typing import Any

import pytest

from art.errors import ConfigurationError
from art_local.config import LoraSettings, OptimizerSettings, WorkerSettings


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


def test_how_rows_are_made_and_kept_is_the_users_to_set() -> None:
    """`trainer_args` takes what decides over memory; upstream's switch for recomputation is understood too."""
    settings = WorkerSettings.from_internal_config(
        "m",
        {
            "trainer_args": {"layout": "packed", "micro_batch_tokens": 2048, "dtype": "float32"},
            "peft_args": {"use_gradient_checkpointing": True},
        },
    )
    assert (settings.layout, settings.micro_batch_tokens) == ("packed", 2048)
    assert (settings.dtype, settings.gradient_checkpointing) == ("float32", True)
    as_upstream = {"peft_args": {"use_gradient_checkpointing": "unsloth"}}
    assert WorkerSettings.from_internal_config("m", as_upstream) == WorkerSettings("m")
    with pytest.raises(ConfigurationError, match="layout"):
        WorkerSettings.from_internal_config("m", {"trainer_args": {"layout": "square"}})


def test_one_gpu_by_name_goes_with_one_process_only() -> None:
    """`cuda:1` and several processes contradict each other."""
    with pytest.raises(ConfigurationError, match="cuda:1"):
        WorkerSettings("m", device="cuda:1", num_processes=2)


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

    for name, value in (("inference_gpu_ids", [0]), ("nonsense", 1)):
        with pytest.raises(ConfigurationError, match=name):
            WorkerSettings.from_internal_config("m", {name: value})


def test_the_gpus_of_the_trainer_are_a_process_each() -> None:
    """Upstream's `trainer_gpu_ids` names the GPUs, and with them how many processes train together."""
    settings = WorkerSettings.from_internal_config("m", {"trainer_gpu_ids": [2, 3]})
    assert (settings.gpu_ids, settings.num_processes) == ((2, 3), 2)
    assert WorkerSettings.from_internal_config("m", {}).num_processes == 1
    message = json.loads(json.dumps(dataclasses.asdict(settings)))
    assert WorkerSettings.from_message(message) == settings
