# ruff: noqa: N803, N806 - shapes stand in the names of tensors
"""What a model lets the trainer do, found out by trying it when it is loaded.

Rows of several sequences need attention that keeps them apart (`attention.py`). A model may mix tokens in other
ways, or put its own twist on attention, and nothing in its configuration says so for certain. So a few short
sequences are run both ways, and the log probabilities compared.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from art.adapter_kit.sequences import TrainingSequence
from art.errors import ConfigurationError
from art_local.attention import IMPLEMENTATION, TreeAttention
from art_local.forward import last_hidden, target_logits
from art_local.loss import token_logprobs
from art_local.packing import pack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from art_local.packing import Layout, Row
    from art_local.policy import Policy

logger = logging.getLogger(__name__)

_TOLERANCES = {torch.float32: 1e-3}  # nats
_TOLERANCE_OF_HALF_PRECISION = 0.1
_LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")
_ATTENTION_KINDS = {"full_attention", "sliding_attention"}


@torch.no_grad()
def find_layout(policy: Policy, wanted: str) -> Layout:
    """Return the layout to train with, and set the model's attention for it.

    Args:
        policy: The model, as transformers loaded it.
        wanted: A layout, or "auto" for the best one.

    Returns:
        The wanted layout, or "padded" with a warning that says why.

    Raises:
        ConfigurationError: The model does not run with the adapter.
    """
    layout: Layout = "packed" if wanted == "packed" else "shared"
    if wanted == "padded":
        return "padded"
    base = policy.model.get_base_model()
    original = base.config._attn_implementation
    with _naming_target_modules(policy):
        expected = _logprobs(policy, _example(policy, "padded"))
    try:
        base.set_attn_implementation(IMPLEMENTATION)
        why = _what_is_wrong(policy, expected)
    except Exception as error:  # noqa: BLE001 - a model may raise anything at what it was not made for
        why = f"{type(error).__name__}: {error}"
    if not why:
        return layout
    base.set_attn_implementation(original)
    logger.warning(
        "%s is trained on padded rows, which is slower: %s (trainer_args={'layout': 'padded'} is rid of this warning)",
        type(base).__name__,
        why,
    )
    return "padded"


@torch.no_grad()
def logits_are_plain(policy: Policy) -> bool:
    """Return whether a model's logits are just what its frozen output layer gives, so that it can be called in parts."""
    head = policy.model.get_output_embeddings()
    if any(parameter.requires_grad for parameter in head.parameters()):
        return False
    row = _example(policy, "padded")
    with policy.autocast(), _naming_target_modules(policy):
        logits_NV = target_logits(policy.model, row)
        return torch.allclose(head(last_hidden(policy.model, row)), logits_NV, rtol=1e-3, atol=1e-3)


def warn_of_long_sequences(policy: Policy) -> None:
    """Warn where positions turn queries and keys by angles that depend on the longest sequence of a row."""
    base = policy.model.get_base_model()
    config = base.config.get_text_config()
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    for part in (rope, *rope.values()):  # some models have parameters for each kind of layer
        if isinstance(part, dict) and part.get("rope_type") in _LENGTH_DEPENDENT_ROPE:
            limit = part.get("original_max_position_embeddings") or config.max_position_embeddings
            logger.warning(
                "%s has position embeddings of type %s: a sequence of more than %d tokens changes how shorter ones of "
                "the same row are computed; keep sequences to %d tokens to be rid of that",
                type(base).__name__,
                part["rope_type"],
                limit,
                limit,
            )
            return


@contextmanager
def _naming_target_modules(policy: Policy) -> Iterator[None]:
    """Name the modules with an adapter in whatever goes wrong when the model is first run."""
    try:
        yield
    except Exception as error:  # a model may raise anything
        modules = policy.model.peft_config["default"].target_modules
        named = modules if isinstance(modules, str) else sorted(modules)
        raise ConfigurationError(
            f"{type(policy.model.get_base_model()).__name__} does not run with an adapter on target_modules={named}: "
            f"{type(error).__name__}: {error}. Name other modules, such as those of attention"
        ) from error


def _what_is_wrong(policy: Policy, expected_N: torch.Tensor) -> str:
    row = _example(policy, "shared")
    tree = _CountingTree(row.segments, row.position_ids_BT[0])
    difference = (_logprobs(policy, row, tree) - expected_N).abs().max().item()
    config = policy.model.get_base_model().config.get_text_config()
    kinds = list(getattr(config, "layer_types", None) or ())
    if set(kinds) - _ATTENTION_KINDS:
        return f"it has layers of type {', '.join(sorted(set(kinds) - _ATTENTION_KINDS))}"
    if tree.calls != config.num_hidden_layers:
        return f"{tree.calls} of its {config.num_hidden_layers} layers attend in a way that can be replaced"
    windows = kinds.count("sliding_attention") if kinds else _num_windows_without_kinds(config)
    if tree.calls_with_window != windows:
        return (
            f"{tree.calls_with_window} of its {windows} layers with a sliding window tell its size"
        )
    tolerance = _TOLERANCES.get(policy.dtype, _TOLERANCE_OF_HALF_PRECISION)
    if not difference <= tolerance:  # NaN is wrong as well
        return f"log probabilities of a packed row are off by {difference:.2g}"
    return ""


def _num_windows_without_kinds(config: Any) -> int:
    has_window = getattr(config, "sliding_window", None) and getattr(
        config, "use_sliding_window", True
    )
    return int(config.num_hidden_layers) if has_window else 0


def _logprobs(policy: Policy, row: Row, tree: TreeAttention | None = None) -> torch.Tensor:
    with policy.autocast():
        logits_NV = target_logits(policy.model, row, tree)
    logprobs_N, _ = token_logprobs(logits_NV, row.targets.token_ids_N, row.targets.temperatures_N)
    # The layouts have the sequences in different orders.
    return logprobs_N[row.targets.advantages_N.argsort(stable=True)]


def _example(policy: Policy, layout: Layout) -> Row:
    """Return sequences that share prefixes at two depths, each marked by its advantage."""
    generator = torch.Generator().manual_seed(0)

    def ids(count: int) -> list[int]:
        return torch.randint(policy.vocabulary_size, (count,), generator=generator).tolist()

    prompt, turn = ids(9), ids(5)
    sequences = [
        TrainingSequence(
            prompt + rest,
            [False] * len(prompt) + [True] * len(rest),
            [0.0] * (len(prompt) + len(rest)),
            [1.0] * (len(prompt) + len(rest)),
            advantage=float(number),
        )
        for number, rest in enumerate([turn + ids(7), ids(12), turn + ids(3), ids(4)])
    ]
    (row,) = pack(sequences, 1000, layout, min_shared=1)
    return row.to(policy.device)


class _CountingTree(TreeAttention):
    """Counts the layers that use it."""

    calls = 0
    calls_with_window = 0

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float | None,
        window: int | None,
    ) -> torch.Tensor:
        """Count, and attend."""
        self.calls += 1
        self.calls_with_window += window is not None
        return super().attend(query, key, value, scaling, window)
