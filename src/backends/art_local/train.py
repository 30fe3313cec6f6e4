# ruff: noqa: N806 - shapes stand in the names of tensors
"""One step of reinforcement learning, to be read top to bottom.

The algorithm, for a batch of token sequences with an advantage each (GRPO-style, see `art.adapter_kit`):

1. Cut the batch into micro-batches.
2. For each micro-batch: run the model, take the logits only where the next token is trained, divide them by the
   sampling temperature, and get the log probability of the token that was sampled.
3. The loss is a clipped policy gradient (see `loss.py`), summed and divided by the action tokens of the *whole*
   train call: every generated token counts, also those of groups without a signal. So gradients of the
   micro-batches add up to the gradient of the batch, however it was cut; and when few groups still have
   a signal, the step is small, instead of as large as if they were all there is.
4. Clip the gradient's norm and take one AdamW step, all in single precision.

Where nothing is to be learned (no trained token, or all advantages zero) the step is left out, since AdamW's
running averages would move the weights even on a zero gradient. It is also left out where the gradient is not
finite: the weights stay as they were, `num_skipped_gradient_steps` tells, and the log names the first tensor.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any

import torch

from art_local.loss import LossStatistics, policy_loss, token_logprobs
from art_local.packing import micro_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from art.adapter_kit.sequences import TrainingSequence
    from art_local.config import WorkerSettings
    from art_local.packing import MicroBatch
    from art_local.policy import Policy
    from art_local.train_options import TrainOptions

logger = logging.getLogger(__name__)


def train_step(
    policy: Policy,
    sequences: Sequence[TrainingSequence],
    options: TrainOptions,
    *,
    learning_rate: float,
    num_action_tokens: int,
    settings: WorkerSettings,
    check_cancelled: Callable[[], None],
) -> dict[str, float]:
    """Take one optimizer step over a whole batch.

    Args:
        policy: The model and its optimizer, changed in place.
        sequences: The batch.
        options: Options of the loss.
        learning_rate: Step size, applied as given.
        num_action_tokens: Generated tokens of the whole train call; the loss is divided by it.
        settings: Sizes of micro-batches, and the gradient's maximal norm.
        check_cancelled: Called between micro-batches; raises to abandon the step. The policy's weights are then
            unchanged, but its gradients are not.

    Returns:
        The metrics of the step, all finite.
    """
    max_targets = max(1, settings.logit_bytes // (4 * policy.vocabulary_size))
    batches = micro_batches(sequences, settings.micro_batch_tokens, max_targets)
    policy.optimizer.zero_grad(set_to_none=True)
    statistics = accumulate_gradients(policy, batches, options, num_action_tokens, check_cancelled)

    metrics = statistics.metrics()
    metrics["num_gradient_steps"] = 1.0
    metrics["num_skipped_gradient_steps"] = 1.0
    if _has_signal(batches):
        grad_norm = torch.nn.utils.clip_grad_norm_(
            policy.parameters.values(), settings.optimizer.max_grad_norm
        ).item()
        metrics["grad_norm"] = grad_norm
        if math.isfinite(grad_norm):
            for group in policy.optimizer.param_groups:
                group["lr"] = learning_rate
            policy.optimizer.step()
            metrics["num_skipped_gradient_steps"] = 0.0
        else:
            logger.warning("gradient step skipped: %s", _first_non_finite_gradient(policy))
    policy.optimizer.zero_grad(set_to_none=True)
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def accumulate_gradients(
    policy: Policy,
    batches: Sequence[MicroBatch],
    options: TrainOptions,
    num_action_tokens: int,
    check_cancelled: Callable[[], None],
) -> LossStatistics:
    """Add the gradient of the whole batch's loss to the policy's gradients, one micro-batch at a time."""
    statistics = LossStatistics()
    for cpu_batch in batches:
        check_cancelled()
        batch = cpu_batch.to(policy.device)
        logits_NV = action_logits(policy.model, batch)
        logprobs_N, entropies_N = token_logprobs(logits_NV, batch.targets_N, batch.temperatures_N)
        loss, batch_statistics = policy_loss(
            logprobs_N,
            batch.sampled_logprobs_N,
            batch.advantages_N,
            entropies_N,
            options,
            denominator=num_action_tokens,
        )
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it without annotations
        statistics.add(batch_statistics)
    check_cancelled()
    return statistics


def action_logits(model: Any, batch: MicroBatch) -> torch.Tensor:
    """Run the model and return its logits, in row order, only where the next token is trained.

    The positions are picked just before the output layer, inside the model's own forward pass: what the model
    does to its logits afterwards (soft caps, scaling) is kept, and the logits of all other positions, by far the
    largest tensor with a large vocabulary, are never made.

    Args:
        model: A causal language model, with or without adapters.
        batch: The micro-batch, on the model's device.

    Returns:
        logits_NV.
    """

    def pick(_module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor]:
        return (inputs[0][batch.predicts_BT].unsqueeze(0),)

    hook = model.get_output_embeddings().register_forward_pre_hook(pick)
    try:
        logits_1NV: torch.Tensor = model(input_ids=batch.input_ids_BT, use_cache=False).logits
    finally:
        hook.remove()
    return logits_1NV[0]


def _has_signal(batches: Sequence[MicroBatch]) -> bool:
    return any(bool((batch.advantages_N != 0).any()) for batch in batches)


def _first_non_finite_gradient(policy: Policy) -> str:
    for name, parameter in policy.parameters.items():
        if parameter.grad is not None and not parameter.grad.isfinite().all():
            return f"the gradient of {name} is not finite"
    return "the norm of the gradient is not finite"
