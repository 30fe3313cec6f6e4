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
_UNSUPPORTED_SECTIONS: dict[str, Any] = {"inference_gpu_ids": []}
_CHOICES: dict[str, tuple[Any, ...]] = {
    "layout": ("auto", "shared", "packed", "padded"),
    "dtype": ("auto", "float32", "bfloat16"),
    "gradient_checkpointing": ("auto", True, False),
}
_PEFT_HINTS = {"max_seq_length", "temporary_location"}
# Fields of WorkerSettings that may stand among `trainer_args`.
_OURS = ("dtype", "gradient_checkpointing", "layout", "logit_bytes", "micro_batch_tokens")


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
        micro_batch_tokens: Tokens of one forward pass, padding included; a longer sequence gets its own. By
            default 4,096 on a CPU and 16,384 elsewhere.
        logit_bytes: Bound on the logits that are held at once; they are the largest tensor with a large
            vocabulary. Where a model does not let its output layer be called in parts, a single sequence may
            exceed it.
        layout: How sequences are put into rows: "shared", "packed" or "padded", see `packing.py`. "auto" is
            "shared" where the model can do it.
        dtype: Precision of the base model: "bfloat16", "float32", or "auto", which is bfloat16 on a GPU only.
            Adapter and optimizer are always float32.
        gradient_checkpointing: Keep less of the forward pass and compute it again in the backward pass: True,
            False, or "auto", which is where a row would not fit into the GPU's memory otherwise.
        num_processes: Processes that train together on this machine, with a GPU each where the device is "cuda".
        shard_base: Whether each of them holds a piece of the base model only; slower, for one that does not fit.
        offload_when_idle: Whether the GPU's memory is given back between two commands, for an inference engine
            on the same GPU.
        gpu_ids: The GPUs of these processes, by the numbers that CUDA gives them; empty is all that are visible.
    """

    base_model: str
    lora: LoraSettings = field(default_factory=LoraSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    device: str = "cpu"
    threads: int = 2
    seed: int = 0
    micro_batch_tokens: int | None = None
    logit_bytes: int = 1 << 28
    layout: str = "auto"
    dtype: str = "auto"
    gradient_checkpointing: bool | str = "auto"
    num_processes: int = 1
    shard_base: bool = False
    offload_when_idle: bool = False
    gpu_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise ConfigurationError(
                    f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(map(repr, known))}"
                )
        if self.num_processes < 1:
            raise ConfigurationError(
                f"the number of training processes is {self.num_processes}; it must be at least 1"
            )
        if ":" in self.device and (self.gpu_ids or self.num_processes > 1):
            raise ConfigurationError(
                f"device {self.device!r} is one GPU; with trainer_gpu_ids or several training processes write 'cuda'"
            )
        if self.shard_base and self.num_processes == 1:
            raise ConfigurationError(
                "shard_base splits the base model over training processes, and there is one; ask for several"
            )
        if self.shard_base and self.offload_when_idle:
            raise ConfigurationError(
                "a base model that is split over GPUs (shard_base) cannot leave them between steps "
                "(offload_when_idle); give trainer and inference engine GPUs of their own"
            )

    @classmethod
    def from_internal_config(
        cls, base_model: str, internal_config: Mapping[str, Any] | None, **overrides: Any
    ) -> WorkerSettings:
        """Read a model's `_internal_config`: `peft_args`, `trainer_args` and `trainer_gpu_ids` by upstream's names.

        Args:
            base_model: Directory or hub id of the base model.
            internal_config: Upstream's options of the model, or None.
            overrides: Other fields of this class, such as `device`.

        Raises:
            ConfigurationError: An option cannot be honoured.
        """
        config = dict(internal_config or {})
        gpu_ids = tuple(config.pop("trainer_gpu_ids", None) or ())
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
        ours = {name: trainer.pop(name) for name in _OURS if name in trainer}
        recompute = peft.pop("use_gradient_checkpointing", None)
        if isinstance(recompute, bool):  # else upstream's name for a way of its own
            ours.setdefault("gradient_checkpointing", recompute)
        refuse_unsupported(peft, _UNSUPPORTED_PEFT_OPTIONS, _PEFT_HINTS, "peft_args")
        for name in trainer:
            warn_once(f"trainer_args.{name}")
        more = {**ours, "seed": seed, "gpu_ids": gpu_ids, "num_processes": max(1, len(gpu_ids))}
        return cls(base_model, lora=lora, optimizer=optimizer, **{**more, **overrides})

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
        fields["gpu_ids"] = tuple(fields.get("gpu_ids", ()))
        return cls(lora=LoraSettings(**lora), optimizer=OptimizerSettings(**optimizer), **fields)


def _target_modules(value: Any) -> tuple[str, ...] | str:
    return value if isinstance(value, str) else tuple(value)
