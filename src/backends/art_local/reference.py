"""Log probabilities under a reference policy, which KL terms pull towards.

The reference is the base model (the adapter switched off) or the adapter of a directory, whose weights take the
place of the trained ones for as long as the pass lasts. The pass comes before the first gradient, since the mean
KL divergence that a penalty is centred on is that of the whole batch, over all processes.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch

from art.errors import TrainingError
from art_local.loss import bounded_log_ratio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from art_local.distributed import World
    from art_local.policy import Policy
    from art_local.train_options import TrainOptions

RowT = TypeVar("RowT")


@dataclass(frozen=True)
class Reference:
    """What the loss of one row needs to know of the reference.

    Attributes:
        mean_kl: Mean of `log p - log p_ref` over all trained tokens of the whole batch, in nats; 0.0 where no
            penalty is centred on it.
        logprobs_N: Log probabilities of the row's targets under the reference, at their sampling temperatures.
    """

    mean_kl: float
    logprobs_N: torch.Tensor  # noqa: N815 - shapes stand in the names of tensors


@torch.no_grad()
def reference_logprobs(
    rows: Sequence[tuple[RowT, bool]],
    options: TrainOptions,
    row_logprobs: Callable[[RowT], tuple[torch.Tensor, torch.Tensor]],
    policy: Policy,
    world: World,
) -> list[Reference | None]:
    """Run every row with the reference, and with the policy where the penalty is centred.

    Args:
        rows: This process's rows, each with whether it counts, as `World.share` returns them.
        options: Which KL term there is, if any, and towards what.
        row_logprobs: The forward pass: logprobs_N and entropies_N of a row.
        policy: The model; its weights are afterwards what they were, also after an error.
        world: All processes; each makes the same passes.

    Returns:
        One reference for each row, in order; None for each where no option asks for one.

    Raises:
        TrainingError: The adapter of the reference cannot be read, does not fit the model, or is still the
            number of a step.
    """
    if not options.needs_reference:
        return [None] * len(rows)
    if options.kl_penalty_reference_step is not None:
        raise TrainingError(
            f"kl_penalty_reference_step={options.kl_penalty_reference_step} was not turned into a directory; call "
            "`TrainOptions.with_reference_directory` where the checkpoints are known"
        )
    with reference_weights(policy, options.kl_ref_adapter_path):
        references = [row_logprobs(row)[0] for row, _ in rows]
    mean_kl = 0.0
    if options.kl_penalty_coef:
        parts = [(0.0, 0)]
        for (row, counts), reference in zip(rows, references, strict=True):
            kl = bounded_log_ratio(row_logprobs(row)[0], reference)  # also where it does not count
            if counts:
                parts.append((kl.sum().item(), kl.numel()))
        parts = world.gather((sum(kl for kl, _ in parts), sum(n for _, n in parts)))
        mean_kl = sum(kl for kl, _ in parts) / max(sum(n for _, n in parts), 1)
    return [Reference(mean_kl, logprobs) for logprobs in references]


@contextlib.contextmanager
def reference_weights(policy: Policy, adapter_dir: str | None) -> Iterator[None]:
    """Let the policy's model be the reference for a while.

    Args:
        policy: The policy.
        adapter_dir: Directory of the reference's adapter; None is the base model.

    Raises:
        TrainingError: The adapter cannot be read, is not finite, or does not fit the model.
    """
    if adapter_dir is None:
        with policy.model.disable_adapter():
            yield
        return
    adapter = policy.read_adapter(Path(adapter_dir))
    own = {name: tensor.clone() for name, tensor in policy.adapter().items()}
    try:
        policy.set_adapter(adapter)
        yield
    finally:
        policy.set_adapter(own)
