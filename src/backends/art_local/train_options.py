"""Options of one train call, read from upstream's option names."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from art.errors import ConfigurationError
from art_local.option_rules import refuse_unsupported

if TYPE_CHECKING:
    from collections.abc import Mapping

    from art.types import TrainConfig

# Options that this trainer does not have, with upstream's default, at which they do nothing.
_UNSUPPORTED_TRAIN_OPTIONS: dict[str, Any] = {
    "advantage_balance": 0.0,
    "importance_sampling_level": "token",
    "kimi_k2_tau": None,
    "kl_penalty_coef": 0.0,
    "kl_ref_adapter_path": None,
    "mask_prob_ratio": False,
    "max_negative_advantage_importance_sampling_weight": None,
    "truncated_importance_sampling": None,
}
_TRAIN_HINTS = {"logprob_calculation_chunk_size", "plot_tensors", "precalculate_logprobs"}


@dataclass(frozen=True)
class TrainOptions:
    """Options of one train call, by upstream's names.

    Attributes:
        epsilon: The ratio is clipped to at least `1 - epsilon`.
        epsilon_high: The ratio is clipped to at most `1 + epsilon_high`.
        ppo: Use PPO's clipped objective; otherwise the clipped ratio is a constant weight (CISPO).
        scale_rewards: Divide advantages by the group's standard deviation.
        allow_training_without_logprobs: Treat turns without logprobs as sampled from the policy in training.
    """

    epsilon: float = 1.0
    epsilon_high: float = 4.0
    ppo: bool = False
    scale_rewards: bool = True
    allow_training_without_logprobs: bool = False

    @classmethod
    def from_dev(cls, dev_config: Mapping[str, Any], config: TrainConfig) -> TrainOptions:
        """Read the options of a train call.

        As upstream: the defaults are 1.0 and 4.0, or 0.2 on both sides with `ppo`; an `epsilon_high` of None
        is `epsilon`.

        Raises:
            ConfigurationError: An option cannot be honoured; the message names it.
        """
        options = dict(dev_config)
        ppo = bool(options.pop("ppo", False))
        epsilon = options.pop("epsilon", None)
        epsilon = (0.2 if ppo else 1.0) if epsilon is None else float(epsilon)
        high = options.pop("epsilon_high", None if ppo else 4.0)
        read = cls(
            epsilon=epsilon,
            epsilon_high=epsilon if high is None else float(high),
            ppo=ppo,
            scale_rewards=bool(options.pop("scale_rewards", True)),
            allow_training_without_logprobs=bool(
                options.pop("allow_training_without_logprobs", False)
            ),
        )
        for name, value in (("epsilon", read.epsilon), ("epsilon_high", read.epsilon_high)):
            if not (math.isfinite(value) and value >= 0):
                raise ConfigurationError(
                    f"train option {name} is {value}; it must be finite and not negative"
                )
        if config.kl_penalty_coef:
            options["kl_penalty_coef"] = config.kl_penalty_coef
        if config.beta:
            options["beta"] = config.beta
        refuse_unsupported(
            options, {**_UNSUPPORTED_TRAIN_OPTIONS, "beta": 0.0}, _TRAIN_HINTS, "train option"
        )
        return read
