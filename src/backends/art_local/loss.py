# ruff: noqa: N803, N806 - shapes stand in the names of tensors
"""The policy-gradient loss, as pure functions of tensors.

Shapes are in the names: N trained tokens of a row, V tokens of the vocabulary, S sequences of a row.

For each trained token, with A its advantage and r the ratio of its probability now to that at sampling time:

- CISPO (the default; MiniMax-M1, https://arxiv.org/abs/2506.13585): `-clip(r) * A * logprob`, the clipped ratio
  being a constant. Every token keeps a gradient; with the default bounds the weight lies in [0, 5].
- PPO (https://arxiv.org/abs/1707.06347): `-min(r * A, clip(r) * A)`.

The ratio may also be taken over the whole sequence, which with PPO's objective is GSPO
(https://arxiv.org/abs/2507.18071). `docs/training-options.md` has the formula of every option.

The sum is divided by the number of generated tokens of the *whole* train call, which is known before the first
row: the gradient is then the same however the batch is cut, as long as a sequence stays in one row. The ratio
against the sampler's own logprobs already corrects for numerical differences between sampler and trainer, so a
second correction is put on top only where the ratio starts from the trainer's own logprobs.

No token can spoil the others: log-ratios are bounded, and what is not finite is replaced before it is multiplied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from art.errors import TrainingError

if TYPE_CHECKING:
    from art_local.reference import Reference
    from art_local.targets import Targets
    from art_local.train_options import TrainOptions

# exp(20) is 5e8: far outside every clip range, and far from overflow in single precision.
_MAX_LOG_RATIO = 20.0

# A token that the model rules out altogether (-inf) counts as this unlikely, and has no gradient.
_LOWEST_LOGPROB = -1000.0


@dataclass
class LossStatistics:
    """What the metrics of a step are made of, summed over rows; plain numbers of detached tensors."""

    num_tokens: int = 0
    loss: float = 0.0
    ratio_sum: float = 0.0
    ratio_min: float = float("inf")
    ratio_max: float = 0.0
    num_clipped: int = 0
    entropy_sum: float = 0.0
    mismatch_kl_sum: float = 0.0
    num_with_reference: int = 0
    kl_policy_ref_sum: float = 0.0

    def add(self, other: LossStatistics) -> None:
        """Add the statistics of another row, or of another process."""
        self.num_tokens += other.num_tokens
        self.loss += other.loss
        self.ratio_sum += other.ratio_sum
        self.ratio_min = min(self.ratio_min, other.ratio_min)
        self.ratio_max = max(self.ratio_max, other.ratio_max)
        self.num_clipped += other.num_clipped
        self.entropy_sum += other.entropy_sum
        self.mismatch_kl_sum += other.mismatch_kl_sum
        self.num_with_reference += other.num_with_reference
        self.kl_policy_ref_sum += other.kl_policy_ref_sum

    def metrics(self) -> dict[str, float]:
        """Return the metrics of a step; without a trained token only its (zero) loss and their number."""
        if self.num_tokens == 0:
            return {"loss": self.loss, "num_trained_tokens": 0.0}
        metrics = {
            "loss": self.loss,
            "ratio_mean": self.ratio_sum / self.num_tokens,
            "ratio_min": self.ratio_min,
            "ratio_max": self.ratio_max,
            "clip_fraction": self.num_clipped / self.num_tokens,
            "entropy": self.entropy_sum / self.num_tokens,
            "mismatch_kl": self.mismatch_kl_sum / self.num_tokens,
            "num_trained_tokens": float(self.num_tokens),
        }
        if self.num_with_reference:
            metrics["kl_policy_ref"] = self.kl_policy_ref_sum / self.num_with_reference
        return metrics


def token_logprobs(
    logits_NV: torch.Tensor, targets_N: torch.Tensor, temperatures_N: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log probability of each target, and the entropy of its distribution, in nats.

    Args:
        logits_NV: The model's logits at the positions before the targets.
        targets_N: Token ids.
        temperatures_N: The sampling temperature of each target; the logits are divided by it, as the sampler
            did.

    Returns:
        logprobs_N, with gradient, and entropies_N, without.
    """
    log_probs_NV = torch.log_softmax(logits_NV.float() / temperatures_N[:, None], dim=-1)
    logprobs_N = log_probs_NV.gather(1, targets_N[:, None])[:, 0]
    entropies_N = torch.special.entr(log_probs_NV.detach().exp()).sum(dim=-1)
    return logprobs_N, entropies_N


def policy_loss(
    logprobs_N: torch.Tensor,
    entropies_N: torch.Tensor,
    targets: Targets,
    options: TrainOptions,
    denominator: int,
    *,
    reference: Reference | None = None,
) -> tuple[torch.Tensor, LossStatistics]:
    """Return a row's part of the loss, and its statistics.

    Args:
        logprobs_N: Log probabilities under the model in training.
        entropies_N: Entropies, for the statistics only.
        targets: What is known of the trained tokens. A logprob that is not finite counts as a ratio of 1. With a
            ratio over sequences, all trained tokens of a sequence are here.
        options: The objective.
        denominator: Generated tokens of the whole train call.
        reference: Of this row, where the options ask for one.

    Returns:
        A scalar, exactly zero where N is 0, and the statistics.

    Raises:
        TrainingError: The options ask for a reference, and there is none.
    """
    if options.needs_reference and reference is None:
        raise TrainingError("the loss has a KL term and was given no reference; pass `reference`")
    denominator = max(denominator, 1)
    if logprobs_N.numel() == 0:
        return logprobs_N.sum() / denominator, LossStatistics()

    logprobs_N = logprobs_N.clamp(min=_LOWEST_LOGPROB)
    now_N = logprobs_N.detach()
    sampled_N = torch.where(targets.logprobs_N.isfinite(), targets.logprobs_N, now_N)
    # The call takes one gradient step, so before it the trainer's logprobs are those of now.
    anchor_N = now_N if options.precalculate_logprobs else sampled_N
    log_ratio_N = bounded_log_ratio(logprobs_N, anchor_N)
    ratio_N = _ratio(log_ratio_N, targets.sequence_N, options.importance_sampling_level)
    advantages_N = _advantages(
        targets.advantages_N, now_N, log_ratio_N.detach(), options, reference
    )

    gain_N, clipped_N = _gain(logprobs_N, ratio_N, advantages_N, options)
    if options.truncated_importance_sampling is not None:
        correction_N = bounded_log_ratio(anchor_N, sampled_N).exp()
        gain_N = gain_N * correction_N.clamp(max=options.truncated_importance_sampling)
    loss_N = -gain_N
    if options.beta and reference is not None:
        loss_N = loss_N + options.beta * _k3(bounded_log_ratio(logprobs_N, reference.logprobs_N))
    loss = loss_N.sum() / denominator
    mismatch_N = _k3(-bounded_log_ratio(now_N, sampled_N))
    return loss, _statistics(loss, ratio_N, clipped_N, entropies_N, mismatch_N, now_N, reference)


def bounded_log_ratio(logprobs_N: torch.Tensor, others_N: torch.Tensor) -> torch.Tensor:
    """Return the difference of log probabilities, in nats, bounded so that its exponential is finite.

    A token that both rule out has a difference of 0.
    """
    difference_N = logprobs_N.clamp(min=_LOWEST_LOGPROB) - others_N.clamp(min=_LOWEST_LOGPROB)
    return difference_N.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)


def _ratio(log_ratio_N: torch.Tensor, sequence_N: torch.Tensor, level: str) -> torch.Tensor:
    """Return the ratio that each token is weighted with."""
    if level == "token":
        return log_ratio_N.exp()
    sizes_S = torch.bincount(sequence_N)
    sums_S = log_ratio_N.new_zeros(len(sizes_S)).index_add(0, sequence_N, log_ratio_N)
    of_sequence_N = (sums_S / sizes_S.clamp(min=1))[sequence_N]
    if level == "sequence":
        return of_sequence_N.exp()
    if level == "average":
        return (log_ratio_N.exp() + of_sequence_N.exp()) / 2
    return ((log_ratio_N + of_sequence_N) / 2).exp()  # geometric_average


def _advantages(
    advantages_N: torch.Tensor,
    now_N: torch.Tensor,
    log_ratio_N: torch.Tensor,
    options: TrainOptions,
    reference: Reference | None,
) -> torch.Tensor:
    """Return the advantages with everything that the options fold into them; constants, all of it."""
    balance = options.advantage_balance
    weights_N = torch.where(advantages_N < 0, 1 - max(balance, 0.0), 1 + min(balance, 0.0))
    advantages_N = advantages_N * weights_N
    if options.kimi_k2_tau:
        advantages_N = advantages_N - options.kimi_k2_tau * log_ratio_N
    if options.kl_penalty_coef and reference is not None:
        kl_N = bounded_log_ratio(now_N, reference.logprobs_N)
        advantages_N = advantages_N + options.kl_penalty_coef * (reference.mean_kl - kl_N)
    return advantages_N


def _gain(
    logprobs_N: torch.Tensor,
    ratio_N: torch.Tensor,
    advantages_N: torch.Tensor,
    options: TrainOptions,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what each token adds to the objective, and whether its ratio was out of bounds."""
    low, high = 1 - options.epsilon, 1 + options.epsilon_high
    used_N = ratio_N
    cap = options.max_negative_advantage_importance_sampling_weight
    if cap is not None:
        used_N = torch.where(advantages_N < 0, ratio_N.clamp(max=cap), ratio_N)
    bounded_N = used_N.clamp(low, high)
    if options.ppo:
        gain_N = torch.minimum(used_N * advantages_N, bounded_N * advantages_N)
    else:
        gain_N = bounded_N.detach() * advantages_N * logprobs_N
    if options.mask_prob_ratio:
        gain_N = gain_N.masked_fill(used_N != bounded_N, 0.0)
    return gain_N, ratio_N != bounded_N


def _k3(log_ratio_N: torch.Tensor) -> torch.Tensor:
    """Estimate the KL divergence of p from q at tokens of p, given `log p - log q`.

    Never negative, and without bias (http://joschu.net/blog/kl-approx.html).
    """
    return (-log_ratio_N).exp() + log_ratio_N - 1


@torch.no_grad()
def _statistics(
    loss: torch.Tensor,
    ratio_N: torch.Tensor,
    clipped_N: torch.Tensor,
    entropies_N: torch.Tensor,
    mismatch_N: torch.Tensor,
    now_N: torch.Tensor,
    reference: Reference | None,
) -> LossStatistics:
    kl_N = now_N.new_zeros(1)
    if reference is not None:
        kl_N = bounded_log_ratio(now_N, reference.logprobs_N)
    figures = torch.stack(  # one transfer from the device, not one each
        [
            loss.to(now_N.dtype),
            ratio_N.sum(),
            ratio_N.min(),
            ratio_N.max(),
            clipped_N.sum().to(now_N.dtype),
            entropies_N.sum().to(now_N.dtype),
            mismatch_N.sum(),
            kl_N.sum(),
        ]
    ).tolist()
    return LossStatistics(
        num_tokens=now_N.numel(),
        loss=figures[0],
        ratio_sum=figures[1],
        ratio_min=figures[2],
        ratio_max=figures[3],
        num_clipped=int(figures[4]),
        entropy_sum=figures[5],
        mismatch_kl_sum=figures[6],
        num_with_reference=0 if reference is None else now_N.numel(),
        kl_policy_ref_sum=figures[7],
    )
