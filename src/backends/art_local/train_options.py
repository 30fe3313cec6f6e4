"""Options of one train call, read from upstream's option names.

Every option that is accepted changes the step, or it is refused by name, with what to do. The formulas stand in
`docs/training-options.md`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art.errors import ConfigurationError
from art_local.checkpoint_files import ADAPTER_WEIGHTS, step_dir
from art_local.option_rules import refuse_unsupported

if TYPE_CHECKING:
    from collections.abc import Mapping

    from art.types import TrainConfig

_LEVELS = ("token", "sequence", "average", "geometric_average")
_TRAIN_HINTS = {"logprob_calculation_chunk_size", "plot_tensors"}


@dataclass(frozen=True)
class TrainOptions:
    """Options of one train call, by upstream's names.

    Attributes:
        epsilon: The ratio is clipped to at least `1 - epsilon`.
        epsilon_high: The ratio is clipped to at most `1 + epsilon_high`.
        ppo: Use PPO's clipped objective; otherwise the clipped ratio is a constant weight (CISPO).
        scale_rewards: Divide advantages by the group's standard deviation.
        allow_training_without_logprobs: Treat turns without logprobs as sampled from the policy in training.
        advantage_balance: Above 0, negative advantages are multiplied with 1 minus it; below 0, positive ones
            with 1 plus it.
        importance_sampling_level: What the ratio is taken over.
        kimi_k2_tau: The advantage of a token falls by this much times its log-ratio.
        mask_prob_ratio: Leave out tokens whose ratio is out of bounds, instead of clipping it.
        max_negative_advantage_importance_sampling_weight: Upper bound of the ratio where the advantage is
            negative.
        precalculate_logprobs: The ratio is taken to the trainer's own logprobs before the step.
        truncated_importance_sampling: Upper bound of the weight that then corrects for the sampler's.
        beta: Weight of the KL divergence from the base model in the loss.
        kl_penalty_coef: Weight of the KL penalty in the advantages.
        kl_penalty_reference_step: Checkpoint step that the penalty pulls towards. `with_reference_directory`
            turns it into a directory.
        kl_ref_adapter_path: Directory of an adapter that the penalty pulls towards; where both are None it is
            the base model.
    """

    epsilon: float = 1.0
    epsilon_high: float = 4.0
    ppo: bool = False
    scale_rewards: bool = True
    allow_training_without_logprobs: bool = False
    advantage_balance: float = 0.0
    importance_sampling_level: str = "token"
    kimi_k2_tau: float = 0.0
    mask_prob_ratio: bool = False
    max_negative_advantage_importance_sampling_weight: float | None = None
    precalculate_logprobs: bool = False
    truncated_importance_sampling: float | None = None
    beta: float = 0.0
    kl_penalty_coef: float = 0.0
    kl_penalty_reference_step: int | None = None
    kl_ref_adapter_path: str | None = None

    @property
    def needs_reference(self) -> bool:
        """Whether there is a KL term."""
        return self.beta != 0 or self.kl_penalty_coef != 0

    @classmethod
    def from_dev(cls, dev_config: Mapping[str, Any], config: TrainConfig) -> TrainOptions:
        """Read the options of a train call.

        As upstream: the clip bounds default to 1.0 and 4.0, or 0.2 on both sides with `ppo`; an `epsilon_high`
        of None is `epsilon`.

        Raises:
            ConfigurationError: An option cannot be honoured, or not together with another; the message names it.
        """
        given = dict(dev_config)
        for name in ("beta", "kl_penalty_coef"):
            _take_over(given, name, getattr(config, name))
        ppo = _flag(given, "ppo")
        default_epsilon, default_high = _default_bounds(ppo)
        epsilon = _number(given, "epsilon", default_epsilon)
        high = epsilon if given.get("epsilon_high", default_high) is None else default_high
        path = given.pop("kl_ref_adapter_path", None)
        options = cls(
            epsilon=epsilon,
            epsilon_high=_number(given, "epsilon_high", high),
            ppo=ppo,
            scale_rewards=_flag(given, "scale_rewards", default=True),
            allow_training_without_logprobs=_flag(given, "allow_training_without_logprobs"),
            advantage_balance=_number(given, "advantage_balance", 0.0, low=-1.0, high=1.0),
            importance_sampling_level=_level(given),
            kimi_k2_tau=_number(given, "kimi_k2_tau", 0.0),
            mask_prob_ratio=_flag(given, "mask_prob_ratio"),
            max_negative_advantage_importance_sampling_weight=_bound(
                given, "max_negative_advantage_importance_sampling_weight"
            ),
            precalculate_logprobs=_flag(given, "precalculate_logprobs"),
            truncated_importance_sampling=_bound(given, "truncated_importance_sampling"),
            beta=_number(given, "beta", 0.0),
            kl_penalty_coef=_number(given, "kl_penalty_coef", 0.0),
            kl_penalty_reference_step=_step(given),
            kl_ref_adapter_path=None if path is None else str(path),
        )
        refuse_unsupported(given, {}, _TRAIN_HINTS, "train option")
        _refuse_combinations(options)
        return options

    def with_reference_directory(self, checkpoints: Path) -> TrainOptions:
        """Return the options with the reference as an absolute directory, as a process elsewhere needs it.

        Args:
            checkpoints: Directory of the model's checkpoints.

        Raises:
            ConfigurationError: There is no adapter.
        """
        path = self.kl_ref_adapter_path
        if self.kl_penalty_reference_step is not None:
            directory = step_dir(checkpoints, self.kl_penalty_reference_step).absolute()
            asked = f"kl_penalty_reference_step={self.kl_penalty_reference_step}"
        elif path is not None:
            directory, asked = Path(path).absolute(), f"kl_ref_adapter_path={path!r}"
        else:
            return self
        if not (directory / ADAPTER_WEIGHTS).is_file():
            raise ConfigurationError(
                f"train option {asked}: {directory} has no {ADAPTER_WEIGHTS}; name a checkpoint that is kept, or "
                "the directory of a peft adapter"
            )
        return replace(self, kl_penalty_reference_step=None, kl_ref_adapter_path=str(directory))


def _default_bounds(ppo: bool) -> tuple[float, float | None]:
    return (0.2, None) if ppo else (1.0, 4.0)


def _take_over(given: dict[str, Any], name: str, value: float) -> None:
    """Take a value of the train config, which also may stand among the options, but not differently."""
    if not value:
        return
    if given.get(name) not in (None, 0, value):
        raise ConfigurationError(
            f"train option {name}={given[name]!r} differs from the train config's {name}={value!r}; give it once"
        )
    given[name] = value


def _flag(given: dict[str, Any], name: str, *, default: bool = False) -> bool:
    """Take True or False; None is the default."""
    value = given.pop(name, None)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ConfigurationError(f"train option {name} is {value!r}; it must be True or False")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _number(
    given: dict[str, Any],
    name: str,
    default: float | None,
    *,
    low: float = 0.0,
    high: float = math.inf,
) -> float:
    """Take a finite number within bounds; None is the default."""
    value: Any = given.pop(name, None)
    value = default if value is None else value
    if not _is_number(value) or not (math.isfinite(value) and low <= value <= high):
        bounds = "not negative" if high == math.inf else f"from {low} to {high}"
        raise ConfigurationError(
            f"train option {name} is {value!r}; it must be a finite number, {bounds}"
        )
    return float(value)


def _bound(given: dict[str, Any], name: str) -> float | None:
    """Take an upper bound of weights; None is none."""
    if given.get(name) is None:
        given.pop(name, None)
        return None
    value = _number(given, name, None)
    if value == 0:
        raise ConfigurationError(
            f"train option {name} is {value!r}; it must be positive, and None is off"
        )
    return value


def _level(given: dict[str, Any]) -> str:
    level = given.pop("importance_sampling_level", None) or "token"
    if level not in _LEVELS:
        raise ConfigurationError(
            f"train option importance_sampling_level is {level!r}; it must be one of {', '.join(_LEVELS)}"
        )
    return str(level)


def _step(given: dict[str, Any]) -> int | None:
    step = given.pop("kl_penalty_reference_step", None)
    if step is not None and not (_is_number(step) and isinstance(step, int) and step >= 0):
        raise ConfigurationError(
            f"train option kl_penalty_reference_step is {step!r}; it must be the number of a checkpoint"
        )
    return step


def _refuse_combinations(options: TrainOptions) -> None:
    """Refuse what would correct twice, or what would have no effect beside another option."""
    cap = options.max_negative_advantage_importance_sampling_weight
    bound = 1 + options.epsilon_high
    if options.beta and options.kl_penalty_coef:
        raise ConfigurationError(
            "train options beta and kl_penalty_coef are both set, and both pull towards a reference; set one: beta "
            "adds to the loss, kl_penalty_coef to the advantages"
        )
    for name in ("kl_penalty_reference_step", "kl_ref_adapter_path"):
        if getattr(options, name) is not None and not options.kl_penalty_coef:
            raise ConfigurationError(
                f"train option {name} has no effect without kl_penalty_coef; set kl_penalty_coef, or leave it out"
                " (beta pulls towards the base model)"
            )
    if None not in (options.kl_penalty_reference_step, options.kl_ref_adapter_path):
        raise ConfigurationError(
            "train options kl_penalty_reference_step and kl_ref_adapter_path both name a reference; set one"
        )
    if options.truncated_importance_sampling is not None and not options.precalculate_logprobs:
        raise ConfigurationError(
            "train option truncated_importance_sampling would correct twice: the ratio is taken to the sampler's "
            "logprobs already. Set precalculate_logprobs=True as well, or bound the ratio with epsilon_high"
        )
    if options.precalculate_logprobs:
        _refuse_options_of_the_ratio(options)
    if cap is not None and cap >= bound and (options.mask_prob_ratio or not options.ppo):
        raise ConfigurationError(
            f"train option max_negative_advantage_importance_sampling_weight={cap:g} has no effect, since "
            f"epsilon_high={options.epsilon_high:g} bounds the weight at {bound:g} already; set it lower"
        )
    if cap is not None and options.ppo and cap <= 1 - options.epsilon:
        raise ConfigurationError(
            f"train option max_negative_advantage_importance_sampling_weight={cap:g} with ppo leaves tokens of negative "
            f"advantage no gradient at all, since epsilon={options.epsilon:g} clips their ratio to at least "
            f"{1 - options.epsilon:g}; set it higher"
        )


def _refuse_options_of_the_ratio(options: TrainOptions) -> None:
    plain = TrainOptions()
    for name in (
        "ppo",
        "epsilon",
        "epsilon_high",
        "importance_sampling_level",
        "kimi_k2_tau",
        "mask_prob_ratio",
        "max_negative_advantage_importance_sampling_weight",
    ):
        if getattr(options, name) != getattr(plain, name):
            raise ConfigurationError(
                f"train option {name} has no effect with precalculate_logprobs: a call takes one gradient step, "
                f"before which the ratio to the trainer's own logprobs is 1. Leave {name} out, or "
                "precalculate_logprobs"
            )
