"""The model in training: base model, LoRA adapter and optimizer, and their files in a checkpoint.

A checkpoint directory is a PEFT adapter (`adapter_model.safetensors`, `adapter_config.json`) that any tool
can load, plus the optimizer's state (`optimizer.safetensors`) and what the trainer must know to go on
(`trainer_state.json`). Adapter and optimizer are single precision, whatever the base model is: with Adam at a
small learning rate, updates of half-precision weights are rounded away.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save_file
from transformers.modeling_layers import GradientCheckpointingLayer

from art.errors import ConfigurationError, TrainingError
from art_local.checkpoint_files import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    OPTIMIZER_STATE,
    TRAINER_STATE,
)
from art_local.distributed import shard_base
from art_local.layout_check import find_layout, logits_are_plain, warn_of_long_sequences
from art_local.lora_forward import use_cheap_forward
from art_local.pretrained import load_model

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from art_local.config import WorkerSettings

_ADAPTER = "default"  # peft saves and loads any other name in a subdirectory
_MOMENTS = ("exp_avg", "exp_avg_sq")
# Other kinds of adapters, which would be computed otherwise than they were trained.
_OTHER_KINDS = ("use_rslora", "use_dora", "rank_pattern", "alpha_pattern")


class Policy:
    """A base model with one LoRA adapter and its AdamW optimizer.

    Args:
        settings: Base model, adapter, optimizer, device and seed.

    Attributes:
        model: The PEFT model, in evaluation mode: dropout would make trainer and sampler disagree.
        optimizer: AdamW over the adapter.
        parameters: The adapter's weights by name; nothing else is trained.
        device: Where the model is.
        dtype: Precision of the base model, and of what is computed.
        vocabulary_size: Number of logits.
        row_tokens: Tokens of one forward pass.
        max_targets: Of how many targets the logits are held at once.
        layout: How sequences are put into rows.
        can_split_logits: Whether the output layer may be called in parts.

    Raises:
        ConfigurationError: The base model cannot be loaded, has no module that the adapter names, or does not
            run with an adapter on them.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self.device = torch.device(settings.device)
        on_cpu = self.device.type == "cpu"
        dtype = settings.dtype
        if dtype == "auto":
            dtype = "float32" if on_cpu else "bfloat16"
        self.dtype: torch.dtype = getattr(torch, dtype)
        base = load_model(settings.base_model, self.dtype)
        lora = settings.lora
        targets = lora.target_modules
        config = LoraConfig(
            r=lora.r,
            lora_alpha=lora.alpha,
            target_modules=targets if isinstance(targets, str) else list(targets),
            task_type="CAUSAL_LM",
            base_model_name_or_path=settings.base_model,
        )
        try:
            model = get_peft_model(base, config)
        except ValueError as error:
            raise ConfigurationError(
                f"the adapter does not fit {settings.base_model}: {error}"
            ) from error
        use_cheap_forward(model, _ADAPTER)
        self.model: Any = model.eval()
        if settings.shard_base:
            trained = [p for p in model.parameters() if p.requires_grad]
            shard_base(model, trained, self.device)
        self.model = self.model.to(self.device)
        self.parameters: dict[str, torch.nn.Parameter] = {
            name: p for name, p in self.model.named_parameters() if p.requires_grad
        }
        self.vocabulary_size: int = self.model.get_output_embeddings().weight.shape[0]
        self.row_tokens = settings.micro_batch_tokens or (4096 if on_cpu else 16384)
        self.max_targets = max(1, settings.logit_bytes // (4 * self.vocabulary_size))
        self.optimizer = self._new_optimizer()
        self.reset()
        self.layout = find_layout(self, settings.layout)
        self.can_split_logits = logits_are_plain(self)
        warn_of_long_sequences(self)
        if self._wants_checkpointing():
            self._checkpoint_gradients()

    def autocast(self) -> AbstractContextManager[None]:
        """Return the context of a forward pass: what is single precision is computed in the base model's."""
        enabled = self.dtype != torch.float32
        return torch.autocast(self.device.type, dtype=self.dtype, enabled=enabled)

    def to(self, device: torch.device) -> None:
        """Move model and optimizer to another device, for as long as nothing is computed there."""
        self.model.to(device)
        for state in self.optimizer.state.values():
            for moment in _MOMENTS:
                state[moment] = state[moment].to(device)

    def reset(self) -> None:
        """Start afresh: a seeded adapter that changes nothing yet (B = 0), and an optimizer without memory."""
        with torch.random.fork_rng():
            torch.manual_seed(self._settings.seed)
            for module in self.model.modules():
                if isinstance(module, LoraLayer):
                    module.reset_lora_parameters(_ADAPTER, init_lora_weights=True)
        self.optimizer = self._new_optimizer()

    def save(self, directory: Path, step: int) -> None:
        """Write the files of a checkpoint into an empty directory.

        Raises:
            TrainingError: A weight is not finite; nothing is written.
        """
        for name, parameter in self.parameters.items():
            if not parameter.isfinite().all():
                raise TrainingError(f"{name} of the adapter is not finite; the step is not saved")
        adapter = {name: tensor.contiguous().cpu() for name, tensor in self.adapter().items()}
        save_file(adapter, directory / ADAPTER_WEIGHTS, metadata={"format": "pt"})
        self._write_adapter_config(directory)
        optimizer = self._optimizer_state()
        optimizer_steps = [int(t) for name, t in optimizer.items() if name.endswith(".step")]
        save_file(optimizer, directory / OPTIMIZER_STATE)
        state = {
            "step": step,
            "base_model": self._settings.base_model,
            "lora": asdict(self._settings.lora),
            "optimizer_steps": max(optimizer_steps, default=0),
            "versions": {name: version(name) for name in ("torch", "transformers", "peft")},
        }
        (directory / TRAINER_STATE).write_text(json.dumps(state, indent=2), encoding="utf-8")

    def load(self, directory: Path) -> None:
        """Read a checkpoint's adapter and optimizer.

        A checkpoint of another tool, without the optimizer's state, starts with a new optimizer.

        Raises:
            TrainingError: Files are missing or not finite, or the adapter has another shape.
        """
        self.set_adapter(self.read_adapter(directory))
        self.optimizer = self._new_optimizer()
        if (directory / OPTIMIZER_STATE).is_file():
            self._load_optimizer(directory)

    def adapter(self) -> dict[str, torch.Tensor]:
        """Return the adapter's weights by the names of peft's files; they share the memory of the parameters."""
        state: dict[str, torch.Tensor] = get_peft_model_state_dict(
            self.model, adapter_name=_ADAPTER, save_embedding_layers=False
        )
        return state

    @torch.no_grad()
    def set_adapter(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Give the adapter other weights, by the names of `adapter`."""
        for name, tensor in self.adapter().items():
            tensor.copy_(weights[name])

    def read_adapter(self, directory: Path) -> dict[str, torch.Tensor]:
        """Read an adapter that fits this model, by the names of `adapter`.

        Raises:
            TrainingError: Files are missing, damaged or not finite, or the adapter has another shape or kind.
        """
        for name in (ADAPTER_WEIGHTS, ADAPTER_CONFIG):
            if not (directory / name).is_file():
                raise TrainingError(
                    f"the adapter in {directory} has no {name}; it was deleted or never whole"
                )
        try:
            config = dict(json.loads((directory / ADAPTER_CONFIG).read_text(encoding="utf-8")))
            saved: dict[str, torch.Tensor] = load_file(directory / ADAPTER_WEIGHTS)
        except Exception as error:  # safetensors raises a class of its own
            raise TrainingError(f"the adapter in {directory} cannot be read: {error}") from error
        self._check_adapter_config(config, directory)
        own = self.adapter()
        for name in sorted(own.keys() | saved.keys()):
            if name not in own or name not in saved or own[name].shape != saved[name].shape:
                raise TrainingError(
                    f"the adapter in {directory} does not fit the model: {name} is missing on one side or has "
                    "another shape; it needs the base model, r and target_modules that it was made with"
                )
            if not saved[name].isfinite().all():
                raise TrainingError(f"{name} of the adapter in {directory} is not finite")
        return saved

    def _wants_checkpointing(self) -> bool:
        wanted = self._settings.gradient_checkpointing
        if wanted != "auto":
            return bool(wanted)
        base = self.model.get_base_model()
        if self.device.type != "cuda" or not base.supports_gradient_checkpointing:
            return False
        # Each linear layer keeps about its input and its output; norms, rotations and attention come on top.
        layers = [m for m in self.model.modules() if isinstance(m, torch.nn.Linear)]
        values = self.row_tokens * sum(m.in_features + m.out_features for m in layers)
        free, _ = torch.cuda.mem_get_info(self.device)
        return 1.5 * values * self.dtype.itemsize > free

    def _checkpoint_gradients(self) -> None:
        base = self.model.get_base_model()
        base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        for module in self.model.modules():
            if isinstance(module, GradientCheckpointingLayer):
                # They do so in training mode only. What is inside stays in evaluation mode, without dropout.
                _switch_off_dropout(module)
                module.training = True

    def _new_optimizer(self) -> torch.optim.AdamW:
        settings = self._settings.optimizer
        return torch.optim.AdamW(
            self.parameters.values(),
            betas=settings.betas,
            eps=settings.epsilon,
            weight_decay=settings.weight_decay,
        )

    def _optimizer_state(self) -> dict[str, torch.Tensor]:
        """Return what the optimizer keeps of each weight; nothing of one that never had a gradient."""
        return {
            f"{name}.{kind}": state[kind].contiguous().cpu()
            for name, parameter in self.parameters.items()
            if (state := self.optimizer.state.get(parameter))
            for kind in (*_MOMENTS, "step")
        }

    def _load_optimizer(self, directory: Path) -> None:
        saved = load_file(directory / OPTIMIZER_STATE)
        for name, parameter in self.parameters.items():
            if f"{name}.{_MOMENTS[0]}" not in saved:  # it never had a gradient
                continue
            if f"{name}.step" not in saved:  # older checkpoints have one number for all
                state = json.loads((directory / TRAINER_STATE).read_text(encoding="utf-8"))
                saved[f"{name}.step"] = torch.tensor(float(state["optimizer_steps"]))
            self.optimizer.state[parameter] = {
                "step": saved[f"{name}.step"],
                **{moment: saved[f"{name}.{moment}"].to(self.device) for moment in _MOMENTS},
            }

    def _write_adapter_config(self, directory: Path) -> None:
        config = self.model.peft_config[_ADAPTER].to_dict()
        config = {k: sorted(v) if isinstance(v, set) else v for k, v in config.items()}
        config["inference_mode"] = True
        text = json.dumps(config, indent=2, sort_keys=True)
        (directory / ADAPTER_CONFIG).write_text(text, encoding="utf-8")

    def _check_adapter_config(self, config: Mapping[str, Any], directory: Path) -> None:
        lora = self._settings.lora
        for name, own in (("r", lora.r), ("lora_alpha", lora.alpha)):
            if config.get(name) != own:
                raise TrainingError(
                    f"the adapter in {directory} has {name}={config.get(name)}, the model is configured with "
                    f"{name}={own}; both need the same"
                )
        for name in _OTHER_KINDS:
            if config.get(name):
                raise TrainingError(
                    f"the adapter in {directory} has {name}={config[name]}, which the trainer does not have; use a "
                    "plain LoRA adapter"
                )


def _switch_off_dropout(layer: torch.nn.Module) -> None:
    """Set every rate that a layer, or what is inside it, hands to a function to 0."""
    for module in layer.modules():
        for name, value in list(vars(module).items()):
            if "dropout" in name and isinstance(value, float):
                setattr(module, name, 0.0)
