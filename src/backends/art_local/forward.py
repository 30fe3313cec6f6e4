# ruff: noqa: N803, N806 - shapes stand in the names of tensors
"""The forward pass over a row: from token ids to the log probabilities of its targets.

Shapes are in the names: B lines, T positions, N trained tokens of the row, C hidden size, V tokens of the
vocabulary.

The positions are picked just before the output layer, inside the model's own forward pass: what the model does to
its logits afterwards (soft caps, scaling) is kept, and the logits of all other positions, by far the largest tensor
with a large vocabulary, are never made. Where even those of the targets are too large, the output layer is applied
to a part of them at a time, and of each part only its results and its gradient are kept.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from art_local.attention import TreeAttention
from art_local.loss import token_logprobs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from art_local.packing import Row
    from art_local.policy import Policy
    from art_local.targets import Targets


def row_logprobs(policy: Policy, row: Row) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log probability of each target of a row, and the entropy of its distribution, in nats.

    Args:
        policy: The model.
        row: On the model's device.

    Returns:
        logprobs_N, with gradient, and entropies_N, without; both in single precision, at the targets' sampling
        temperatures.
    """
    targets = row.targets
    with policy.autocast():
        if policy.can_split_logits and len(row.sources_N) > policy.max_targets:
            hidden_NC = last_hidden(policy.model, row)
            head = policy.model.get_output_embeddings()
            return split_logprobs(head, hidden_NC, targets, policy.max_targets)
        logits_NV = target_logits(policy.model, row)
    return token_logprobs(logits_NV, targets.token_ids_N, targets.temperatures_N)


def target_logits(model: Any, row: Row, tree: TreeAttention | None = None) -> torch.Tensor:
    """Run the model and return its logits at the sources of the targets, logits_NV; the tree is by default the row's."""
    with _before_output_layer(model, lambda hidden_NC: hidden_NC, row.sources_N):
        logits_1NV = _run(model, row, tree)
    return logits_1NV[0]


def last_hidden(model: Any, row: Row) -> torch.Tensor:
    """Run the model and return what goes into its output layer at the sources of the targets, hidden_NC."""
    kept: list[torch.Tensor] = []

    def keep(hidden_NC: torch.Tensor) -> torch.Tensor:
        kept.append(hidden_NC)
        return hidden_NC[:1]  # the model wants logits to go on with

    with _before_output_layer(model, keep, row.sources_N):
        _run(model, row)
    return kept[0]


def _run(model: Any, row: Row, tree: TreeAttention | None = None) -> torch.Tensor:
    inputs: dict[str, Any] = {"input_ids": row.input_ids_BT, "use_cache": False}
    if row.segments:
        inputs["position_ids"] = row.position_ids_BT
        inputs["tree"] = tree or TreeAttention(row.segments, row.position_ids_BT[0])
    logits: torch.Tensor = model(**inputs).logits
    return logits


@contextmanager
def _before_output_layer(
    model: Any, change: Callable[[torch.Tensor], torch.Tensor], sources_N: torch.Tensor
) -> Iterator[None]:
    def pick(_module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor]:
        return (change(inputs[0].flatten(0, 1)[sources_N])[None],)

    hook = model.get_output_embeddings().register_forward_pre_hook(pick)
    try:
        yield
    finally:
        hook.remove()


def split_logprobs(
    head: torch.nn.Module, hidden_NC: torch.Tensor, targets: Targets, chunk: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what `token_logprobs` does, without ever holding the logits of more than `chunk` targets.

    Args:
        head: The output layer; its weights get no gradient.
        hidden_NC: Its input.
        targets: The targets.
        chunk: How many.
    """
    results: tuple[torch.Tensor, torch.Tensor] = _SplitLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden_NC, head, targets.token_ids_N, targets.temperatures_N, chunk
    )
    return results


class _SplitLogprobs(torch.autograd.Function):
    """Each log probability depends on one line of its input only, so that line's gradient can be made at once.

    It is made in the forward pass, while the chunk's logits are there, and only scaled in the backward pass;
    nothing is computed twice.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_NC: torch.Tensor,
        head: torch.nn.Module,
        token_ids_N: torch.Tensor,
        temperatures_N: torch.Tensor,
        chunk: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        wants_gradient = ctx.needs_input_grad[0]
        logprobs, entropies = [], []
        gradients: list[torch.Tensor] = []
        for hidden, token_ids, temperatures in zip(
            torch.split(hidden_NC, chunk),
            torch.split(token_ids_N, chunk),
            torch.split(temperatures_N, chunk),
            strict=True,
        ):
            with torch.set_grad_enabled(wants_gradient):
                line = hidden.detach().requires_grad_(wants_gradient)
                of_chunk, entropy = token_logprobs(head(line), token_ids, temperatures)
                if wants_gradient:
                    gradients += torch.autograd.grad(of_chunk.sum(), line)
            logprobs.append(of_chunk.detach())
            entropies.append(entropy)
        entropies_N = torch.cat(entropies)
        if wants_gradient:
            ctx.save_for_backward(torch.cat(gradients))
        ctx.mark_non_differentiable(entropies_N)
        return torch.cat(logprobs), entropies_N

    @staticmethod
    def backward(ctx: Any, grad_N: torch.Tensor, _: Any) -> tuple[torch.Tensor | None, ...]:
        (gradient_NC,) = ctx.saved_tensors
        return (grad_N[:, None] * gradient_NC).to(gradient_NC.dtype), None, None, None, None
