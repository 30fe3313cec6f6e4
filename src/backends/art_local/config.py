"""Settings of the local trainer, read from upstream's option names.

Every option that is accepted has an effect, is at upstream's default, or is a hint about how upstream's engine
should do its work (memory, chunking, logging), for which one warning says that it changes nothing here. Any
other option is refused by name.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from art.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from art.types import TrainConfig

logger = logging.getLogger(__name__)

ALL_LINEAR = "all-linear"

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

_UNSUPPORTED_PEFT_OPTIONS: dict[str, Any] = {
    "bias": "none",
    "init_lora_weights": True,
    "layers_pattern": None,
    "layers_to_transform": None,
    "loftq_config": {},
    "lora_dropout": 0,
    "modules_to_save": None,
    "use_rslora": False,
}
# Sections of a model's internal config that speak to upstream's engine, or to another backend.
_HINT_SECTIONS = ("init_args", "engine_args", "tinker_args", "tinker_native_args")
_UNSUPPORTED_SECTIONS: dict[str, Any] = {"trainer_gpu_ids": [], "inference_gpu_ids": []}
_PEFT_HINTS = {"max_seq_length", "temporary_location", "use_gradient_checkpointing"}

_warned: set[str] = set()


@dataclass(frozen=True)
class LoraSettings:
    """The adapter that is trained.

    Attributes:
        r: Rank.
        alpha: The adapter's output is scaled by `alpha / r`.
        target_modules: Names of the modules that get an adapter, or "all-linear": every linear layer but the
            output layer.
    """

    r: int = 8
    alpha: int = 16
    target_modules: tuple[str, ...] | str = ALL_LINEAR

    def __post_init__(self) -> None:
        if self.r < 1:
            raise ConfigurationError(f"the LoRA rank r is {self.r}; it must be at least 1")


@dataclass(frozen=True)
class OptimizerSettings:
    """AdamW and what surrounds one step of it. The learning rate comes with each train call.

    Attributes:
        betas: Decay rates of the running averages of gradient and squared gradient.
        epsilon: Added to the denominator.
        weight_decay: Decoupled weight decay.
        max_grad_norm: Gradients with a larger norm are scaled down to it.
    """

    betas: tuple[float, float] = (0.9, 0.99)
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0


@dataclass(frozen=True)
class WorkerSettings:
    """The first message to the training worker.

    Attributes:
        base_model: Directory or hub id of the base model.
        lora: The adapter.
        optimizer: AdamW.
        device: Where to train, as torch spells it.
        threads: CPU threads of torch.
        seed: Seed of the fresh adapter's weights.
        micro_batch_tokens: Tokens of one forward pass, padding included; a longer sequence gets its own.
        logit_bytes: Bound on the logits of one forward pass; they are the largest tensor with a large
            vocabulary. A single sequence may exceed it.
    """

    base_model: str
    lora: LoraSettings = field(default_factory=LoraSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    device: str = "cpu"
    threads: int = 2
    seed: int = 0
    micro_batch_tokens: int = 4096
    logit_bytes: int = 1 << 30

    @classmethod
    def from_internal_config(
        cls, base_model: str, internal_config: Mapping[str, Any] | None, **overrides: Any
    ) -> WorkerSettings:
        """Read a model's `_internal_config`: `peft_args` and `trainer_args` by upstream's names.

        Args:
            base_model: Directory or hub id of the base model.
            internal_config: Upstream's options of the model, or None.
            overrides: Other fields of this class, such as `device`.

        Raises:
            ConfigurationError: An option cannot be honoured.
        """
        config = dict(internal_config or {})
        peft = dict(config.pop("peft_args", None) or {})
        trainer = dict(config.pop("trainer_args", None) or {})
        for section in _HINT_SECTIONS:
            for name in config.pop(section, None) or {}:
                _warn_once(f"{section}.{name}")
        _refuse(config, _UNSUPPORTED_SECTIONS, set(), "internal config option")
        default = OptimizerSettings()
        optimizer = OptimizerSettings(
            betas=(
                float(trainer.pop("adam_beta1", default.betas[0])),
                float(trainer.pop("adam_beta2", default.betas[1])),
            ),
            epsilon=float(trainer.pop("adam_epsilon", default.epsilon)),
            weight_decay=float(trainer.pop("weight_decay", default.weight_decay)),
            max_grad_norm=float(trainer.pop("max_grad_norm", default.max_grad_norm)),
        )
        lora = LoraSettings(
            r=int(peft.pop("r", LoraSettings.r)),
            alpha=int(peft.pop("lora_alpha", LoraSettings.alpha)),
            target_modules=_target_modules(peft.pop("target_modules", ALL_LINEAR)),
        )
        seed = int(peft.pop("random_state", trainer.pop("seed", 0)))
        _refuse(peft, _UNSUPPORTED_PEFT_OPTIONS, _PEFT_HINTS, "peft_args")
        for name in trainer:
            _warn_once(f"trainer_args.{name}")
        return cls(base_model, lora=lora, optimizer=optimizer, **{"seed": seed, **overrides})

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> WorkerSettings:
        """Read the worker's first message: `dataclasses.asdict` of the settings, through JSON."""
        fields = dict(message)
        lora = dict(fields.pop("lora", {}))
        if "target_modules" in lora:
            lora["target_modules"] = _target_modules(lora["target_modules"])
        optimizer = dict(fields.pop("optimizer", {}))
        if "betas" in optimizer:
            optimizer["betas"] = tuple(optimizer["betas"])
        return cls(lora=LoraSettings(**lora), optimizer=OptimizerSettings(**optimizer), **fields)


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
        _refuse(options, {**_UNSUPPORTED_TRAIN_OPTIONS, "beta": 0.0}, _TRAIN_HINTS, "train option")
        return read


def server_options(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return host, port and api_key from upstream's options of the inference server, where they are given.

    The others speak to vLLM; one warning for each says that it has no effect here.
    """
    given = dict(options or {})
    args = dict(given.pop("server_args", None) or {})
    taken = {name: args.pop(name) for name in ("host", "port", "api_key") if name in args}
    for name in [*(f"server_args.{name}" for name in args), *given]:
        _warn_once(name)
    return taken


def _target_modules(value: Any) -> tuple[str, ...] | str:
    return value if isinstance(value, str) else tuple(value)


def _refuse(
    options: Mapping[str, Any], unsupported: Mapping[str, Any], hints: set[str], what: str
) -> None:
    for name, value in options.items():
        if name in hints:
            _warn_once(f"{what} {name}")
        elif name not in unsupported:
            raise ConfigurationError(
                f"{what} {name!r} is not known to the local backend; remove it"
            )
        elif value != unsupported[name]:
            raise ConfigurationError(
                f"{what} {name}={value!r} is not supported by the local backend; leave it out, or at its default "
                f"{unsupported[name]!r}"
            )


def _warn_once(name: str) -> None:
    if name not in _warned:
        _warned.add(name)
        logger.warning("%s has no effect with the local backend", name)
