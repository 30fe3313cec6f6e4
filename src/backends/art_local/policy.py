"""The model in training: base model, LoRA adapter and optimizer, and their files in a checkpoint.

A checkpoint directory is a PEFT adapter (`adapter_model.safetensors`, `adapter_config.json`) that any tool
can load, plus the optimizer's state (`optimizer.safetensors`) and what the trainer must know to go on
(`trainer_state.json`). Adapter and optimizer are single precision: with Adam at a small learning rate, updates
of half-precision weights are rounded away.
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

from art.errors import ConfigurationError, TrainingError
from art_local.checkpoint_files import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    OPTIMIZER_STATE,
    TRAINER_STATE,
)
from art_local.pretrained import load_model

if TYPE_CHECKING:
    from pathlib import Path

    from art_local.config import WorkerSettings

_ADAPTER = "default"  # peft saves and loads any other name in a subdirectory
_MOMENTS = ("exp_avg", "exp_avg_sq")


class Policy:
    """A base model with one LoRA adapter and its AdamW optimizer.

    Args:
        settings: Base model, adapter, optimizer, device and seed.

    Attributes:
        model: The PEFT model, in evaluation mode: dropout would make trainer and sampler disagree.
        optimizer: AdamW over the adapter.
        parameters: The adapter's weights by name; nothing else is trained.
        device: Where the model is.
        vocabulary_size: Number of logits.

    Raises:
        ConfigurationError: The base model cannot be loaded, or has no module that the adapter names.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self.device = torch.device(settings.device)
        base = load_model(settings.base_model, torch.float32)
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
        self.model: Any = model.to(self.device).eval()
        self.parameters: dict[str, torch.nn.Parameter] = {
            name: p for name, p in self.model.named_parameters() if p.requires_grad
        }
        self.vocabulary_size: int = self.model.get_output_embeddings().weight.shape[0]
        self.optimizer = self._new_optimizer()
        self.reset()

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
        adapter = {name: tensor.contiguous().cpu() for name, tensor in self._adapter().items()}
        save_file(adapter, directory / ADAPTER_WEIGHTS, metadata={"format": "pt"})
        self._write_adapter_config(directory)
        moments, optimizer_steps = self._optimizer_state()
        save_file(moments, directory / OPTIMIZER_STATE)
        state = {
            "step": step,
            "base_model": self._settings.base_model,
            "lora": asdict(self._settings.lora),
            "optimizer_steps": optimizer_steps,
            "versions": {name: version(name) for name in ("torch", "transformers", "peft")},
        }
        (directory / TRAINER_STATE).write_text(json.dumps(state, indent=2), encoding="utf-8")

    def load(self, directory: Path) -> None:
        """Read a checkpoint's adapter and optimizer.

        A checkpoint of another tool, without the optimizer's state, starts with a new optimizer.

        Raises:
            TrainingError: Files are missing or not finite, or the adapter has another shape.
        """
        for name in (ADAPTER_WEIGHTS, ADAPTER_CONFIG):
            if not (directory / name).is_file():
                raise TrainingError(
                    f"checkpoint {directory} has no {name}; it was deleted or never whole"
                )
        self._check_adapter_config(directory)
        own, saved = self._adapter(), load_file(directory / ADAPTER_WEIGHTS)
        for name in sorted(own.keys() | saved.keys()):
            if name not in own or name not in saved or own[name].shape != saved[name].shape:
                raise TrainingError(
                    f"the adapter in {directory} does not fit the model: {name} is missing on one side or has "
                    f"another shape; train with the base model, r and target_modules that it was made with"
                )
            if not saved[name].isfinite().all():
                raise TrainingError(f"{name} of the adapter in {directory} is not finite")
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(saved[name])  # shares its storage with the model's parameter
        self.optimizer = self._new_optimizer()
        if (directory / OPTIMIZER_STATE).is_file():
            self._load_optimizer(directory)

    def _adapter(self) -> dict[str, torch.Tensor]:
        state: dict[str, torch.Tensor] = get_peft_model_state_dict(
            self.model, adapter_name=_ADAPTER, save_embedding_layers=False
        )
        return state

    def _new_optimizer(self) -> torch.optim.AdamW:
        settings = self._settings.optimizer
        return torch.optim.AdamW(
            self.parameters.values(),
            betas=settings.betas,
            eps=settings.epsilon,
            weight_decay=settings.weight_decay,
        )

    def _optimizer_state(self) -> tuple[dict[str, torch.Tensor], int]:
        moments: dict[str, torch.Tensor] = {}
        steps = 0
        for name, parameter in self.parameters.items():
            state = self.optimizer.state.get(parameter)
            if state:
                steps = int(state["step"])
                for moment in _MOMENTS:
                    moments[f"{name}.{moment}"] = state[moment].contiguous().cpu()
        return moments, steps

    def _load_optimizer(self, directory: Path) -> None:
        moments = load_file(directory / OPTIMIZER_STATE)
        if not moments:  # saved before the first gradient step
            return
        state = json.loads((directory / TRAINER_STATE).read_text(encoding="utf-8"))
        for name, parameter in self.parameters.items():
            self.optimizer.state[parameter] = {
                "step": torch.tensor(float(state["optimizer_steps"])),
                **{m: moments[f"{name}.{m}"].to(self.device) for m in _MOMENTS},
            }

    def _write_adapter_config(self, directory: Path) -> None:
        config = self.model.peft_config[_ADAPTER].to_dict()
        config = {k: sorted(v) if isinstance(v, set) else v for k, v in config.items()}
        config["inference_mode"] = True
        text = json.dumps(config, indent=2, sort_keys=True)
        (directory / ADAPTER_CONFIG).write_text(text, encoding="utf-8")

    def _check_adapter_config(self, directory: Path) -> None:
        config = json.loads((directory / ADAPTER_CONFIG).read_text(encoding="utf-8"))
        lora = self._settings.lora
        if (config["r"], config["lora_alpha"]) != (lora.r, lora.alpha):
            raise TrainingError(
                f"the adapter in {directory} has r={config['r']} and lora_alpha={config['lora_alpha']}, the model "
                f"is configured with r={lora.r} and lora_alpha={lora.alpha}; use the checkpoint's values"
            )
