"""Tiny random models of several architectures, made on the spot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

VOCABULARY = 50
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_SLIDING_AND_FULL = ["sliding_attention", "full_attention"]


def save_model(directory: Path, kind: str) -> Path:
    """Save a random model whose every part matters: the same kind, the same weights."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(_config(kind))
        for name, parameter in model.named_parameters():
            if (
                parameter.dim() > 1
            ):  # larger than a fresh initialisation, so that attention is no mere average
                torch.nn.init.normal_(parameter, std=0.5 if "embed" in name else 0.3)
    model.save_pretrained(directory)
    return directory


def _config(kind: str) -> Any:
    from transformers import AutoConfig

    match kind:
        case "qwen3":
            return AutoConfig.for_model("qwen3", **_SIZES)
        case "mistral":  # every layer sees the last five positions
            return AutoConfig.for_model("mistral", **_SIZES, sliding_window=5)
        case "gemma3":
            return AutoConfig.for_model(
                "gemma3_text", **_SIZES, sliding_window=5, layer_types=_SLIDING_AND_FULL
            )
        case "gemma2":  # bounds its attention scores and its logits
            return AutoConfig.for_model(
                "gemma2", **_SIZES, sliding_window=5, layer_types=_SLIDING_AND_FULL
            )
        case "granite":  # divides its logits
            return AutoConfig.for_model("granite", **_SIZES, logits_scaling=4.0)
        case "mamba":  # has no attention at all
            return AutoConfig.for_model(
                "mamba", vocab_size=VOCABULARY, hidden_size=32, state_size=4, num_hidden_layers=2
            )
    raise ValueError(kind)
