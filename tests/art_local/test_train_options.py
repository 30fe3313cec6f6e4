from __future__ import annotations

import json
import logging
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest

from art.errors import ConfigurationError
from art.types import TrainConfig
from art_local import option_rules
from art_local.train_options import TrainOptions

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


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
        ({"epsilon": None}, (1.0, 4.0)),
    ],
)
def test_clip_bounds_default_as_upstream(
    given: dict[str, Any], bounds: tuple[float, float]
) -> None:
    """The ratio lies in [0, 5], or within 0.2 of 1 with `ppo`, unless bounds are given."""
    read = options(**given)
    assert (read.epsilon, read.epsilon_high) == bounds


def test_every_option_is_read() -> None:
    """What is given is what the loss gets, also through the file that carries it to another process."""
    given = {
        "epsilon": 0.3,
        "epsilon_high": 0.5,
        "ppo": True,
        "scale_rewards": False,
        "allow_training_without_logprobs": True,
        "advantage_balance": -0.5,
        "importance_sampling_level": "sequence",
        "kimi_k2_tau": 0.1,
        "mask_prob_ratio": True,
        "max_negative_advantage_importance_sampling_weight": 1.2,
        "kl_penalty_coef": 0.2,
        "kl_penalty_reference_step": 3,
    }
    read = options(**given)
    assert {name: getattr(read, name) for name in given} == given
    assert TrainOptions(**json.loads(json.dumps(asdict(read)))) == read
    corrected = options(precalculate_logprobs=True, truncated_importance_sampling=2)
    assert corrected.precalculate_logprobs
    assert corrected.truncated_importance_sampling == 2.0


def test_an_unknown_option_is_refused_by_name() -> None:
    """A user never trains with an option that is silently ignored."""
    with pytest.raises(ConfigurationError, match="no_such_option"):
        options(no_such_option=1)


RATIO = "precalculate_logprobs"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"beta": 0.1, "kl_penalty_coef": 0.1}, ("beta", "kl_penalty_coef")),
        (
            {"truncated_importance_sampling": 2.0},
            ("truncated_importance_sampling", "precalculate_logprobs=True"),
        ),
        ({"kl_penalty_reference_step": 3}, ("kl_penalty_reference_step", "kl_penalty_coef")),
        ({"kl_ref_adapter_path": "/x"}, ("kl_ref_adapter_path", "kl_penalty_coef")),
        (
            {"beta": 0.1, "kl_ref_adapter_path": "/x"},
            ("kl_ref_adapter_path", "kl_penalty_coef", "beta"),
        ),
        (
            {"kl_penalty_coef": 0.1, "kl_ref_adapter_path": "/x", "kl_penalty_reference_step": 3},
            ("kl_ref_adapter_path", "kl_penalty_reference_step"),
        ),
        (
            {"max_negative_advantage_importance_sampling_weight": 5.0},
            ("max_negative_advantage_importance_sampling_weight", "epsilon_high"),
        ),
        (
            {
                "ppo": True,
                "mask_prob_ratio": True,
                "max_negative_advantage_importance_sampling_weight": 3.0,
            },
            ("max_negative_advantage_importance_sampling_weight", "epsilon_high"),
        ),
        (
            {"ppo": True, "max_negative_advantage_importance_sampling_weight": 0.8},
            ("max_negative_advantage_importance_sampling_weight", "ppo", "epsilon"),
        ),
        ({RATIO: True, "ppo": True}, (RATIO, "ppo")),
        ({RATIO: True, "epsilon": 0.2}, (RATIO, "epsilon")),
        ({RATIO: True, "epsilon_high": 0.2}, (RATIO, "epsilon_high")),
        ({RATIO: True, "kimi_k2_tau": 0.2}, (RATIO, "kimi_k2_tau")),
        ({RATIO: True, "mask_prob_ratio": True}, (RATIO, "mask_prob_ratio")),
        (
            {RATIO: True, "importance_sampling_level": "sequence"},
            (RATIO, "importance_sampling_level"),
        ),
        (
            {RATIO: True, "max_negative_advantage_importance_sampling_weight": 0.5},
            (RATIO, "max_negative_advantage_importance_sampling_weight"),
        ),
    ],
    ids=str,
)
def test_options_that_double_or_cancel_each_other_are_refused_with_both_names(
    given: dict[str, Any], named: tuple[str, ...]
) -> None:
    """The message names everything that the user may have to change."""
    with pytest.raises(ConfigurationError) as error:
        options(**given)
    assert all(name in str(error.value) for name in named), str(error.value)


@pytest.mark.parametrize(
    "given",
    [
        {"ppo": True, "max_negative_advantage_importance_sampling_weight": 3.0},
        {"ppo": True, "max_negative_advantage_importance_sampling_weight": 0.9},
        {"epsilon": 0.2, "max_negative_advantage_importance_sampling_weight": 0.5},
        {"epsilon_high": 9.0, "max_negative_advantage_importance_sampling_weight": 5.0},
        {RATIO: True, "epsilon": 1.0, "epsilon_high": 4.0, "beta": 0.1},
        {RATIO: True, "kl_penalty_coef": 0.1, "advantage_balance": 0.2},
        {"kl_penalty_coef": 0.1, "kimi_k2_tau": 0.1, "importance_sampling_level": "average"},
    ],
    ids=str,
)
def test_options_that_have_an_effect_together_are_accepted(given: dict[str, Any]) -> None:
    """Only what would be in vain or twice is refused."""
    assert options(**given) != TrainOptions()


@pytest.mark.parametrize("name", ["beta", "kl_penalty_coef"])
def test_a_kl_term_may_come_with_the_train_config(name: str) -> None:
    """It is the same as among the options; two different values are refused."""
    config = TrainConfig.model_validate({name: 0.1})
    for dev_config in ({}, {name: 0.0}, {name: 0.1}):
        read = TrainOptions.from_dev(dev_config, config)
        assert getattr(read, name) == 0.1
        assert read.needs_reference
    with pytest.raises(ConfigurationError, match=f"{name}=0.2"):
        TrainOptions.from_dev({name: 0.2}, config)


@pytest.mark.parametrize(
    "name",
    [
        "ppo",
        "scale_rewards",
        "allow_training_without_logprobs",
        "mask_prob_ratio",
        "precalculate_logprobs",
    ],
)
def test_a_flag_of_none_is_the_default(name: str) -> None:
    """As for numbers; `scale_rewards` stays on."""
    assert options(**{name: None}) == TrainOptions()


def test_upstreams_defaults_are_accepted() -> None:
    """Spelling out the defaults of every option is fine."""
    spelled_out = options(
        advantage_balance=0.0,
        allow_training_without_logprobs=False,
        importance_sampling_level=None,
        kimi_k2_tau=None,
        kl_penalty_coef=0.0,
        kl_penalty_reference_step=None,
        kl_ref_adapter_path=None,
        mask_prob_ratio=False,
        max_negative_advantage_importance_sampling_weight=None,
        ppo=False,
        precalculate_logprobs=False,
        scale_rewards=True,
        truncated_importance_sampling=None,
    )
    assert spelled_out == TrainOptions()
    assert not spelled_out.needs_reference


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epsilon", -0.1),
        ("epsilon_high", float("nan")),
        ("epsilon_high", float("inf")),
        ("epsilon", "wide"),
        ("advantage_balance", 1.5),
        ("advantage_balance", -1.5),
        ("beta", -0.1),
        ("importance_sampling_level", "group"),
        ("kimi_k2_tau", -1.0),
        ("kl_penalty_coef", -0.1),
        ("kl_penalty_reference_step", -1),
        ("kl_penalty_reference_step", "latest"),
        ("max_negative_advantage_importance_sampling_weight", 0.0),
        ("truncated_importance_sampling", float("inf")),
        ("truncated_importance_sampling", 0.0),
        ("beta", True),
        ("epsilon", True),
        ("kl_penalty_reference_step", True),
        ("truncated_importance_sampling", True),
        ("ppo", "false"),
        ("scale_rewards", 0),
        ("allow_training_without_logprobs", 1),
        ("mask_prob_ratio", "yes"),
        ("precalculate_logprobs", 1.0),
    ],
)
def test_a_value_that_means_nothing_is_refused(name: str, value: Any) -> None:
    """The message names the option and the value."""
    with pytest.raises(ConfigurationError, match=f"{name} is {value!r}"):
        options(**{name: value})


def test_a_hint_warns_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options about upstream's engine are accepted at any value, with one warning each."""
    monkeypatch.setattr(option_rules, "_warned", set())
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            options(logprob_calculation_chunk_size=512, plot_tensors=True)
    assert sorted(caplog.messages) == [
        "train option logprob_calculation_chunk_size has no effect here",
        "train option plot_tensors has no effect here",
    ]


@pytest.mark.local
def test_the_reference_becomes_a_directory(
    tmp_path: Path, tiny_adapter_dir: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step is the directory of its checkpoint, and a path is made absolute, for a process elsewhere."""
    adapter = tiny_adapter_dir()
    (tmp_path / "0003").symlink_to(adapter)
    monkeypatch.chdir(tmp_path)
    for name, value in (("kl_penalty_reference_step", 3), ("kl_ref_adapter_path", "0003")):
        read = options(kl_penalty_coef=0.1, **{name: value}).with_reference_directory(tmp_path)
        assert read.kl_ref_adapter_path == str(tmp_path / "0003")
        assert read.kl_penalty_reference_step is None
    plain = options(kl_penalty_coef=0.1)
    assert plain.with_reference_directory(tmp_path) is plain


@pytest.mark.parametrize(
    ("name", "value"), [("kl_penalty_reference_step", 7), ("kl_ref_adapter_path", "/nowhere")]
)
def test_a_reference_that_does_not_exist_is_told_before_anything_is_trained(
    tmp_path: Path, name: str, value: Any
) -> None:
    """The message names the option and the directory."""
    read = options(kl_penalty_coef=0.1, **{name: value})
    with pytest.raises(ConfigurationError, match=f"{name}=.*(0007|/nowhere)"):
        read.with_reference_directory(tmp_path)
