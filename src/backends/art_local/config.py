"""What the training worker is made with: the model, its adapter and its optimizer, by upstream's option names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from art.errors import ConfigurationError
from art_local.option_rules import refuse_unsupported, warn_once

if TYPE_CHECKING:
    from collections.abc import Mapping

ALL_LINEAR = "all-linear"

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
                warn_once(f"{section}.{name}")
        refuse_unsupported(config, _UNSUPPORTED_SECTIONS, set(), "internal config option")
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
        refuse_unsupported(peft, _UNSUPPORTED_PEFT_OPTIONS, _PEFT_HINTS, "peft_args")
        for name in trainer:
            warn_once(f"trainer_args.{name}")
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


def _target_modules(value: Any) -> tuple[str, ...] | str:
    return value if isinstance(value, str) else tuple(value)
