from __future__ import annotations

import logging
from typing import Any

import pytest

from art.errors import ConfigurationError
from art.types import TrainConfig
from art_local import option_rules
from art_local.train_options import TrainOptions


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
    monkeypatch.setattr(option_rules, "_warned", set())
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            options(logprob_calculation_chunk_size=512, plot_tensors=True)
    assert sorted(caplog.messages) == [
        "train option logprob_calculation_chunk_size has no effect with the local backend",
        "train option plot_tensors has no effect with the local backend",
    ]
