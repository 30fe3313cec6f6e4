# ruff: noqa: N803, N806 - shapes stand in the names of tensors
"""The policy-gradient loss, as pure functions of tensors.

Shapes are in the names: N trained tokens of a micro-batch, V tokens of the vocabulary.

For each trained token, with r the ratio of its probability now to that at sampling time and A its advantage:

- CISPO (the default; MiniMax-M1, https://arxiv.org/abs/2506.13585): `-clip(r) * A * logprob`, the clipped ratio
  being a constant. Every token keeps a gradient; with the default bounds the weight lies in [0, 5].
- PPO (https://arxiv.org/abs/1707.06347): `-min(r * A, clip(r) * A)`.

The sum is divided by the number of trained tokens of the *whole* batch, which is known before the first
micro-batch: the gradient is then the same however the batch is cut. The ratio against the sampler's own
logprobs already corrects for numerical differences between sampler and trainer, so no second correction is
put on top.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from art_local.train_options import TrainOptions

# exp(20) is 5e8: far outside every clip range, and far from overflow in single precision.
_MAX_LOG_RATIO = 20.0


@dataclass
class LossStatistics:
    """What the metrics of a step are made of, summed over micro-batches; plain numbers of detached tensors."""

    num_tokens: int = 0
    loss: float = 0.0
    ratio_sum: float = 0.0
    ratio_min: float = float("inf")
    ratio_max: float = 0.0
    num_clipped: int = 0
    entropy_sum: float = 0.0
    mismatch_kl_sum: float = 0.0

    def add(self, other: LossStatistics) -> None:
        """Add the statistics of another micro-batch."""
        self.num_tokens += other.num_tokens
        self.loss += other.loss
        self.ratio_sum += other.ratio_sum
        self.ratio_min = min(self.ratio_min, other.ratio_min)
        self.ratio_max = max(self.ratio_max, other.ratio_max)
        self.num_clipped += other.num_clipped
        self.entropy_sum += other.entropy_sum
        self.mismatch_kl_sum += other.mismatch_kl_sum

    def metrics(self) -> dict[str, float]:
        """Return the metrics of a step; without a trained token only its (zero) loss and their number."""
        if self.num_tokens == 0:
            return {"loss": self.loss, "num_trained_tokens": 0.0}
        return {
            "loss": self.loss,
            "ratio_mean": self.ratio_sum / self.num_tokens,
            "ratio_min": self.ratio_min,
            "ratio_max": self.ratio_max,
            "clip_fraction": self.num_clipped / self.num_tokens,
            "entropy": self.entropy_sum / self.num_tokens,
            "mismatch_kl": self.mismatch_kl_sum / self.num_tokens,
            "num_trained_tokens": float(self.num_tokens),
        }


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
    sampled_logprobs_N: torch.Tensor,
    advantages_N: torch.Tensor,
    entropies_N: torch.Tensor,
    options: TrainOptions,
    denominator: int,
) -> tuple[torch.Tensor, LossStatistics]:
    """Return a micro-batch's part of the loss, and its statistics.

    Args:
        logprobs_N: Log probabilities under the model in training.
        sampled_logprobs_N: Log probabilities at sampling time; NaN counts as a ratio of 1.
        advantages_N: Advantages.
        entropies_N: Entropies, for the statistics only.
        options: Clip bounds and kind of the objective.
        denominator: Action tokens of the whole train call.

    Returns:
        A scalar, exactly zero where N is 0, and the statistics.
    """
    known_N = torch.where(sampled_logprobs_N.isnan(), logprobs_N.detach(), sampled_logprobs_N)
    log_ratio_N = (logprobs_N - known_N).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    ratio_N = log_ratio_N.exp()
    clipped_N = ratio_N.clamp(1 - options.epsilon, 1 + options.epsilon_high)
    if options.ppo:
        loss_N = -torch.minimum(ratio_N * advantages_N, clipped_N * advantages_N)
    else:
        loss_N = -clipped_N.detach() * advantages_N * logprobs_N
    loss = loss_N.sum() / max(denominator, 1)
    return loss, _statistics(loss, log_ratio_N, ratio_N, clipped_N, entropies_N)


@torch.no_grad()
def _statistics(
    loss: torch.Tensor,
    log_ratio_N: torch.Tensor,
    ratio_N: torch.Tensor,
    clipped_N: torch.Tensor,
    entropies_N: torch.Tensor,
) -> LossStatistics:
    if ratio_N.numel() == 0:
        return LossStatistics(loss=loss.item())
    return LossStatistics(
        num_tokens=ratio_N.numel(),
        loss=loss.item(),
        ratio_sum=ratio_N.sum().item(),
        ratio_min=ratio_N.min().item(),
        ratio_max=ratio_N.max().item(),
        num_clipped=int((ratio_N != clipped_N).sum().item()),
        entropy_sum=entropies_N.sum().item(),
        # The k3 estimator of the KL divergence between sampler and trainer (http://joschu.net/blog/kl-approx.html).
        mismatch_kl_sum=(ratio_N - log_ratio_N - 1).sum().item(),
    )
