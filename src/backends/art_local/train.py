"""One step of reinforcement learning, to be read top to bottom.

The algorithm, for a batch of token sequences with an advantage each (GRPO-style, see `art.adapter_kit`):

1. Pack the sequences into rows; what a group's sequences have in common is there once (`packing.py`).
2. For each row: run the model, take the logits only where the next token is trained, divide them by the sampling
   temperature, and get the log probability of the token that was sampled (`forward.py`).
3. The loss is a clipped policy gradient (`loss.py`), summed and divided by the action tokens of the *whole* train
   call: every generated token counts, also those of groups without a signal. So gradients of the rows add up to
   the gradient of the batch, however it was packed; and when few groups still have a signal, the step is small,
   instead of as large as if they were all there is. Where a KL term asks for it, a pass before gives the log
   probabilities under a reference (`reference.py`).
4. Several processes each take their part of the rows, and add up their gradients (`distributed.py`).
5. Clip the gradient's norm and take one AdamW step, all in single precision.

Where nothing is to be learned (no trained token, or a gradient of zero) the step is left out, since AdamW's
running averages would move the weights all the same. It is also left out where the gradient is not
finite: the weights stay as they were, `num_skipped_gradient_steps` tells, and the log names the first tensor.
"""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING

import torch

from art_local.distributed import World
from art_local.forward import row_logprobs
from art_local.loss import LossStatistics, policy_loss
from art_local.packing import PackStatistics, pack
from art_local.reference import reference_logprobs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from art.adapter_kit.sequences import TrainingSequence
    from art_local.config import WorkerSettings
    from art_local.packing import Row
    from art_local.policy import Policy
    from art_local.reference import Reference
    from art_local.train_options import TrainOptions

logger = logging.getLogger(__name__)

_ALONE = World()


def train_step(
    policy: Policy,
    sequences: Sequence[TrainingSequence],
    options: TrainOptions,
    *,
    learning_rate: float,
    num_action_tokens: int,
    settings: WorkerSettings,
    check_cancelled: Callable[[], None],
    world: World = _ALONE,
) -> dict[str, float]:
    """Take one optimizer step over a whole batch.

    Args:
        policy: The model and its optimizer, changed in place.
        sequences: The batch, whole on every process.
        options: Options of the loss.
        learning_rate: Step size, applied as given.
        num_action_tokens: Generated tokens of the whole train call; the loss is divided by it.
        settings: The gradient's maximal norm.
        check_cancelled: Called between rows, as often on every process; raises to abandon the step. The policy's
            weights are then unchanged, but its gradients are not.
        world: The processes that take the step together.

    Returns:
        The metrics of the step, all finite and the same on every process but for the times, which are this one's.
    """
    clock = _Clock()
    rows = pack_batch(policy, sequences)
    times = {"pack_s": clock.lap()}

    my_rows = world.share(rows)

    def logprobs_of(row: Row) -> tuple[torch.Tensor, torch.Tensor]:
        check_cancelled()
        return row_logprobs(policy, row.to(policy.device))

    references = reference_logprobs(my_rows, options, logprobs_of, policy, world)
    times["reference_s"] = clock.lap()

    policy.optimizer.zero_grad(set_to_none=True)
    mine = accumulate_gradients(
        policy, my_rows, references, options, num_action_tokens, check_cancelled
    )
    world.sum_gradients(policy.parameters.values())
    statistics = LossStatistics()
    for part in world.gather(mine):
        statistics.add(part)
    times["forward_backward_s"] = clock.lap()

    metrics = statistics.metrics()
    metrics["num_gradient_steps"] = 1.0
    metrics["num_skipped_gradient_steps"] = 1.0
    if rows:
        grad_norm = torch.nn.utils.clip_grad_norm_(
            policy.parameters.values(), settings.optimizer.max_grad_norm
        ).item()
        metrics["grad_norm"] = grad_norm
        if not math.isfinite(grad_norm):
            logger.warning("gradient step skipped: %s", _first_non_finite_gradient(policy))
        elif grad_norm > 0:
            for group in policy.optimizer.param_groups:
                group["lr"] = learning_rate
            policy.optimizer.step()
            metrics["num_skipped_gradient_steps"] = 0.0
    policy.optimizer.zero_grad(set_to_none=True)
    times["optimizer_s"] = clock.lap()

    metrics |= _packing_metrics(rows, policy.row_tokens, sum(times.values())) | times
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def pack_batch(policy: Policy, sequences: Sequence[TrainingSequence]) -> list[Row]:
    """Put a batch into rows as the policy's model can take them."""
    max_targets = None if policy.can_split_logits else policy.max_targets
    return pack(sequences, policy.row_tokens, policy.layout, max_targets=max_targets)


def accumulate_gradients(
    policy: Policy,
    rows: Sequence[tuple[Row, bool]],
    references: Sequence[Reference | None],
    options: TrainOptions,
    num_action_tokens: int,
    check_cancelled: Callable[[], None],
) -> LossStatistics:
    """Add the gradient of the loss of some rows to the policy's gradients, one row at a time.

    A row that does not count goes the same way through the model, and adds nothing.
    """
    statistics = LossStatistics()
    for (row_on_cpu, counts), reference in zip(rows, references, strict=True):
        check_cancelled()
        row = row_on_cpu.to(policy.device)
        logprobs_N, entropies_N = row_logprobs(policy, row)  # noqa: N806 - shapes stand in the names
        loss, row_statistics = policy_loss(
            logprobs_N, entropies_N, row.targets, options, num_action_tokens, reference=reference
        )
        if counts:
            statistics.add(row_statistics)
        else:
            loss = loss * 0.0
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it without annotations
    check_cancelled()
    return statistics


def _first_non_finite_gradient(policy: Policy) -> str:
    for name, parameter in policy.parameters.items():
        if parameter.grad is not None and not parameter.grad.isfinite().all():
            return f"the gradient of {name} is not finite"
    return "the norm of the gradient is not finite"


def _packing_metrics(rows: Sequence[Row], row_tokens: int, seconds: float) -> dict[str, float]:
    packed = PackStatistics.of(rows, row_tokens)
    return {
        "num_rows": float(len(rows)),
        "num_packed_tokens": float(packed.physical_tokens),
        "packing_efficiency": packed.efficiency,
        "tokens_per_s": packed.logical_tokens / seconds,
    }


class _Clock:
    """Tells how long each part of the step took."""

    def __init__(self) -> None:
        self._last_s = time.perf_counter()

    def lap(self) -> float:
        """Return the seconds since the last lap."""
        now_s = time.perf_counter()
        last_s, self._last_s = self._last_s, now_s
        return now_s - last_s
