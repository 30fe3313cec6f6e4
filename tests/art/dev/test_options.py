from __future__ import annotations

import typing

import pydantic
import pytest

from art import dev

OPTIONS = [getattr(dev, name) for name in dev.__all__]


@pytest.mark.parametrize("option", OPTIONS, ids=dev.__all__)
def test_no_key_is_required_and_each_one_is_explained(option: typing.Any) -> None:
    """Every class can be empty, and its docstring tells the meaning of each key."""
    assert option.__total__ is False
    assert option() == {}
    for key in option.__annotations__:
        assert f"        {key}: " in option.__doc__


def test_further_keys_are_carried_along() -> None:
    """Nothing is dropped or refused at run time, nested options included."""
    engine_args: typing.Any = {"max_model_len": 512, "some_new_flag": True}
    config = dev.InternalModelConfig(engine_args=engine_args)
    assert config == {"engine_args": {"max_model_len": 512, "some_new_flag": True}}


def test_train_config_has_the_keys_of_upstream() -> None:
    """The 18 keys of upstream 0.5.16, and the step of a KL reference."""
    assert set(dev.TrainConfig.__annotations__) == {
        "advantage_balance",
        "allow_training_without_logprobs",
        "epsilon",
        "epsilon_high",
        "importance_sampling_level",
        "kimi_k2_tau",
        "kl_penalty_coef",
        "kl_penalty_reference_step",
        "kl_ref_adapter_path",
        "logprob_calculation_chunk_size",
        "mask_prob_ratio",
        "max_negative_advantage_importance_sampling_weight",
        "num_trajectories_learning_rate_multiplier_power",
        "plot_tensors",
        "ppo",
        "precalculate_logprobs",
        "scale_learning_rate_by_reward_std_dev",
        "scale_rewards",
        "truncated_importance_sampling",
    }


@pytest.mark.parametrize("option", OPTIONS, ids=dev.__all__)
def test_pydantic_can_hold_options_in_a_field(option: typing.Any) -> None:
    """A pydantic model may have them as fields on every supported version of Python."""
    assert pydantic.TypeAdapter(option).validate_python({}) == {}
