"""Loading the base model for inference, and what the engine needs to know of it."""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator


def model_source(base_model: str) -> str:
    """Check where a base model is to be loaded from, without loading torch.

    Args:
        base_model: A directory, or an id on the Hugging Face hub.

    Returns:
        What `from_pretrained` takes.

    Raises:
        ConfigurationError: It is a path, and there is no model.
    """
    path = Path(base_model).expanduser()
    if not (base_model.startswith((".", "~", "/")) or path.is_dir()):
        return base_model
    if not (path / "config.json").is_file():
        raise ConfigurationError(
            f"the base model {base_model} is not a model directory (it has no config.json); "
            "pass a directory that `save_pretrained` wrote, or an id on the Hugging Face hub"
        )
    return str(path)


def load_model(base_model: str, dtype: Any) -> Any:
    """Load a causal LM, without its tokenizer.

    Args:
        base_model: A directory, or an id on the Hugging Face hub.
        dtype: Precision of the weights, or "auto" for the one they were saved in.

    Raises:
        ConfigurationError: It cannot be loaded; the message says what to do.
    """
    from transformers import AutoModelForCausalLM

    with _naming(base_model) as source:
        model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype)
    if getattr(model.config.get_text_config(), "attn_logit_softcapping", None):
        model.set_attn_implementation("eager")  # others leave the cap out, without a word
    return model


def load_pretrained(base_model: str, device: str | None = None) -> tuple[Any, Any]:
    """Load a causal LM and its tokenizer, quietly.

    On a CPU the weights are float32, whatever they were saved in; else as they were saved.

    Args:
        base_model: A directory, or an id on the Hugging Face hub.
        device: Where to; by default a GPU if there is one.

    Raises:
        ConfigurationError: It cannot be loaded; the message says what to do.
    """
    import torch
    from transformers import AutoTokenizer
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    with _naming(base_model) as source:
        tokenizer = AutoTokenizer.from_pretrained(source)
    model = load_model(base_model, torch.float32 if device == "cpu" else "auto")
    return model.to(device), tokenizer


@contextmanager
def _naming(base_model: str) -> Iterator[str]:
    """Give the source of a base model, and name the base model in whatever goes wrong with it."""
    source = model_source(base_model)
    try:
        yield source
    # For a model that is missing, damaged or unfit, transformers raises whatever its readers raise.
    except Exception as error:
        raise ConfigurationError(
            f"the base model {base_model!r} could not be loaded: {type(error).__name__}: {error}. Check the "
            "name and the network, or pass the path of a whole model directory"
        ) from error


def end_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Tokens that end a completion: those of the generation config, and the tokenizer's."""
    configured = model.generation_config.eos_token_id
    ids = configured if isinstance(configured, list) else [configured]
    return frozenset(
        token_id for token_id in [*ids, tokenizer.eos_token_id] if token_id is not None
    )


def max_context(model: Any, tokenizer: Any) -> int:
    """Most tokens of a prompt and its completion together."""
    config = model.config.get_text_config().to_dict()
    # A tokenizer without a limit of its own says so with a huge number.
    limits = [config.get("max_position_embeddings"), tokenizer.model_max_length]
    return min(int(limit) for limit in limits if limit is not None)


def check_supported(model: Any, tokenizer: Any) -> None:
    """Refuse what the engine cannot serve.

    Raises:
        ConfigurationError: There is no chat template, or layers keep another state than keys and values.
    """
    if not tokenizer.chat_template:
        raise ConfigurationError(
            f"the tokenizer of {model.config.name_or_path} has no chat template; use an instruct model, or add a chat_template"
        )
    if "past_key_values" not in inspect.signature(model.forward).parameters:
        raise ConfigurationError(
            f"{type(model).__name__} keeps no key-value cache; this engine serves attention models only"
        )
    layers = set(model.config.get_text_config().to_dict().get("layer_types") or ())
    if layers - {"full_attention", "sliding_attention"}:
        raise ConfigurationError(
            f"{type(model).__name__} has layers of type {sorted(layers)}; this engine serves attention models only"
        )
