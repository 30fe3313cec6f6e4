# ruff: noqa: N806 - shapes stand in the names of tensors
from __future__ import annotations

import math

import pytest
import torch

from art_local.loss import LossStatistics, policy_loss, token_logprobs
from art_local.train_options import TrainOptions

pytestmark = pytest.mark.local


def loss_and_gradient(
    logprobs: list[float],
    sampled: list[float],
    advantages: list[float],
    options: TrainOptions,
    denominator: int = 1,
) -> tuple[float, list[float], LossStatistics]:
    """The loss, its gradient with respect to the logprobs, and the statistics."""
    logprobs_N = torch.tensor(logprobs, dtype=torch.float64, requires_grad=True)
    loss, statistics = policy_loss(
        logprobs_N,
        torch.tensor(sampled, dtype=torch.float64),
        torch.tensor(advantages, dtype=torch.float64),
        torch.ones(len(logprobs)),
        options,
        denominator,
    )
    (gradient,) = torch.autograd.grad(loss, logprobs_N)
    return loss.item(), gradient.tolist(), statistics


def test_logprobs_belong_to_the_sampling_temperature() -> None:
    """Logits are divided by the temperature before the softmax, and the entropy is that of the same distribution."""
    logits_NV = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    logprobs_N, entropies_N = token_logprobs(
        logits_NV, torch.tensor([1, 1]), torch.tensor([1.0, 0.5])
    )
    p = [1 / (1 + math.exp(-1)), 1 / (1 + math.exp(-2))]
    assert logprobs_N.tolist() == pytest.approx([math.log(x) for x in p])
    assert entropies_N.tolist() == pytest.approx(
        [-(x * math.log(x) + (1 - x) * math.log(1 - x)) for x in p]
    )


def test_a_token_ruled_out_by_an_infinite_logit_leaves_the_entropy_finite() -> None:
    """0 * log 0 counts as 0."""
    logits_NV = torch.tensor([[0.0, -math.inf, 0.0]])
    _, entropies_N = token_logprobs(logits_NV, torch.tensor([0]), torch.ones(1))
    assert entropies_N.tolist() == pytest.approx([math.log(2)])


def test_cispo_weighs_each_token_with_its_clipped_ratio_as_a_constant() -> None:
    """The gradient is minus ratio times advantage, the ratio within [0, 5]."""
    sampled = [-1.0, -1.0, -9.0]
    logprobs = [-1.0, -1.0 + math.log(2), -1.0]  # ratios 1, 2, e^8
    loss, gradient, statistics = loss_and_gradient(
        logprobs, sampled, [1.0, -1.0, 2.0], TrainOptions(), denominator=4
    )
    assert gradient == pytest.approx([-1 / 4, 2 / 4, -5 * 2 / 4])
    assert loss == pytest.approx((1 + 2 * logprobs[1] + 5 * 2) / 4)
    metrics = statistics.metrics()
    assert metrics["clip_fraction"] == pytest.approx(1 / 3)
    assert metrics["ratio_min"] == 1.0
    assert metrics["ratio_max"] == pytest.approx(math.exp(8))
    assert metrics["num_trained_tokens"] == 3
    assert metrics["entropy"] == 1.0


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [(1.0, 1.0, -1.0), (1.5, 1.0, 0.0), (1.5, -1.0, 1.5), (0.5, 1.0, -0.5), (0.5, -1.0, 0.0)],
)
def test_ppo_stops_the_gradient_where_the_ratio_has_moved_far_enough(
    ratio: float, advantage: float, expected: float
) -> None:
    """Beyond the clip range a token no longer pushes in its own direction, but may still be pulled back."""
    options = TrainOptions(epsilon=0.2, epsilon_high=0.2, ppo=True)
    _, gradient, _ = loss_and_gradient([-1.0 + math.log(ratio)], [-1.0], [advantage], options)
    assert gradient == pytest.approx([expected])


def test_an_unknown_logprob_counts_as_a_ratio_of_one() -> None:
    """NaN stands for a token sampled from the policy in training."""
    _, gradient, statistics = loss_and_gradient([-3.0], [math.nan], [2.0], TrainOptions())
    assert gradient == [-2.0]
    assert statistics.metrics()["ratio_mean"] == 1.0
    assert statistics.metrics()["mismatch_kl"] == 0.0


@pytest.mark.parametrize("ppo", [False, True])
@pytest.mark.parametrize("sampled", [-2000.0, 0.0])
def test_an_extreme_ratio_stays_finite(ppo: bool, sampled: float) -> None:
    """The logarithm of the ratio is bounded, so that nothing overflows."""
    options = TrainOptions(ppo=ppo)
    loss, gradient, statistics = loss_and_gradient([-500.0], [sampled], [1.0], options)
    assert math.isfinite(loss)
    assert all(map(math.isfinite, gradient))
    assert all(map(math.isfinite, statistics.metrics().values()))


def test_c128_no_trained_token_gives_a_finite_zero() -> None:
    """An empty micro-batch, or batch, has loss 0 and no ratio to report."""
    loss, _, statistics = loss_and_gradient([], [], [], TrainOptions(), denominator=0)
    assert loss == 0.0
    assert statistics.metrics() == {"loss": 0.0, "num_trained_tokens": 0.0}


def test_c140_the_mismatch_of_sampler_and_trainer_is_measured() -> None:
    """`mismatch_kl` is the mean of r - log r - 1, zero only where both agree."""
    _, _, agree = loss_and_gradient([-1.0, -2.0], [-1.0, -2.0], [1.0, 1.0], TrainOptions())
    assert agree.metrics()["mismatch_kl"] == 0.0
    _, _, differ = loss_and_gradient([-1.0, -1.0], [-1.0, -1.1], [1.0, 1.0], TrainOptions())
    assert differ.metrics()["mismatch_kl"] == pytest.approx((math.exp(0.1) - 0.1 - 1) / 2)


def test_statistics_of_micro_batches_add_up() -> None:
    """Metrics of a batch do not depend on how it was cut."""
    logprobs, sampled, advantages = [-1.0, -2.0, -0.5], [-1.5, -1.0, -4.0], [1.0, -1.0, 0.5]
    _, _, whole = loss_and_gradient(logprobs, sampled, advantages, TrainOptions(), denominator=3)
    total = LossStatistics()
    for i in range(3):
        cut = slice(i, i + 1)
        _, _, part = loss_and_gradient(
            logprobs[cut], sampled[cut], advantages[cut], TrainOptions(), denominator=3
        )
        total.add(part)
    assert total.metrics() == pytest.approx(whole.metrics())
