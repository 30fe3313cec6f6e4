# ruff: noqa: N806 - shapes stand in the names of tensors
from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from art.adapter_kit.advantages import group_advantages
from art.dev import TrainConfig as DevTrainConfig
from art.errors import TrainingError
from art.types import TrainConfig
from art_local.loss import LossStatistics, bounded_log_ratio, policy_loss, token_logprobs
from art_local.reference import Reference
from art_local.targets import Targets
from art_local.train_options import TrainOptions
from tests.profiles import examples

pytestmark = pytest.mark.local


@dataclass(frozen=True)
class Batch:
    """Trained tokens, sequence after sequence, with log probabilities under everybody who has an opinion."""

    logprobs: list[float]
    sampled: list[float]
    advantages: list[float]
    sequences: list[int]
    reference: list[float]

    def cut(self, indices: list[int]) -> Batch:
        """Some of the tokens, their sequences counted from 0."""
        values = [[getattr(self, f.name)[i] for i in indices] for f in fields(self)]
        values[3] = [s - values[3][0] for s in values[3]]
        return Batch(*values)


def tokens(logprobs: list[float], sampled: list[float], advantages: list[float]) -> Batch:
    """One sequence of these tokens."""
    return Batch(logprobs, sampled, advantages, [0] * len(logprobs), [-1.0] * len(logprobs))


def loss_and_gradient(
    batch: Batch,
    options: TrainOptions,
    denominator: int = 1,
    mean_kl: float = 0.0,
    dtype: torch.dtype = torch.float64,
) -> tuple[float, list[float], LossStatistics]:
    """The loss, its gradient with respect to the logprobs, and the statistics."""

    def tensor(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype)

    n = len(batch.logprobs)
    logprobs_N = tensor(batch.logprobs).requires_grad_()
    loss, statistics = policy_loss(
        logprobs_N,
        torch.ones(n),
        Targets(
            token_ids_N=torch.zeros(n, dtype=torch.long),
            logprobs_N=tensor(batch.sampled),
            temperatures_N=torch.ones(n),
            advantages_N=tensor(batch.advantages),
            sequence_N=torch.tensor(batch.sequences, dtype=torch.long),
        ),
        options,
        denominator,
        reference=Reference(mean_kl, tensor(batch.reference)) if options.needs_reference else None,
    )
    (gradient,) = torch.autograd.grad(loss, logprobs_N)
    return loss.item(), gradient.tolist(), statistics


# --- the objective, written plainly: one token at a time, no tensors ---


def plain_loss(
    batch: Batch, now: list[float], o: TrainOptions, denominator: int, mean_kl: float
) -> float:
    """The loss at logprobs `now`, where what is constant in the objective stands at `batch.logprobs`.

    Its derivative with respect to `now` is therefore the gradient.
    """
    total = 0.0
    for i in range(len(now)):
        advantage = plain_advantage(batch, i, o, mean_kl)
        r = plain_ratio(batch, i, now if o.ppo else batch.logprobs, o)
        cap = o.max_negative_advantage_importance_sampling_weight
        if cap is not None and advantage < 0:
            r = min(r, cap)
        clipped = min(max(r, 1 - o.epsilon), 1 + o.epsilon_high)
        gain = min(r * advantage, clipped * advantage) if o.ppo else clipped * advantage * now[i]
        if o.mask_prob_ratio and r != clipped:
            gain = 0.0
        if o.truncated_importance_sampling is not None:
            correction = math.exp(batch.logprobs[i] - sampled_or_now(batch, i))
            gain *= min(correction, o.truncated_importance_sampling)
        d = batch.reference[i] - now[i]
        total += -gain + o.beta * (math.exp(d) - d - 1)
    return total / denominator


def plain_advantage(batch: Batch, i: int, o: TrainOptions, mean_kl: float) -> float:
    """The advantage of a token with all that is folded into it."""
    advantage = batch.advantages[i]
    if advantage < 0 and o.advantage_balance > 0:
        advantage *= 1 - o.advantage_balance
    if advantage > 0 and o.advantage_balance < 0:
        advantage *= 1 + o.advantage_balance
    advantage -= o.kimi_k2_tau * plain_log_ratio(batch, i, batch.logprobs, o)
    if o.kl_penalty_coef:
        advantage += o.kl_penalty_coef * (mean_kl - (batch.logprobs[i] - batch.reference[i]))
    return advantage


def plain_ratio(batch: Batch, i: int, now: list[float], o: TrainOptions) -> float:
    """The ratio of a token, or of its sequence."""
    siblings = [j for j, s in enumerate(batch.sequences) if s == batch.sequences[i]]
    token = math.exp(plain_log_ratio(batch, i, now, o))
    mean = sum(plain_log_ratio(batch, j, now, o) for j in siblings) / len(siblings)
    return {
        "token": token,
        "sequence": math.exp(mean),
        "average": (token + math.exp(mean)) / 2,
        "geometric_average": math.sqrt(token * math.exp(mean)),
    }[o.importance_sampling_level]


def plain_log_ratio(batch: Batch, i: int, now: list[float], o: TrainOptions) -> float:
    """The log-ratio of a token to where the objective's ratio starts from."""
    return now[i] - (batch.logprobs[i] if o.precalculate_logprobs else sampled_or_now(batch, i))


def sampled_or_now(batch: Batch, i: int) -> float:
    """The log probability at sampling time, where it is known."""
    return batch.sampled[i] if math.isfinite(batch.sampled[i]) else batch.logprobs[i]


def plain_gradient(
    batch: Batch, options: TrainOptions, denominator: int, mean_kl: float
) -> list[float]:
    """Its derivative, by central differences."""
    gradient = []
    for i in range(len(batch.logprobs)):
        step = [0.0] * len(batch.logprobs)
        step[i] = 1e-6
        up, down = (
            plain_loss(
                batch,
                [p + sign * s for p, s in zip(batch.logprobs, step, strict=True)],
                options,
                denominator,
                mean_kl,
            )
            for sign in (1, -1)
        )
        gradient.append((up - down) / 2e-6)
    return gradient


# Odd steps, so that no ratio lies on a clip bound, where there is no derivative.
logprob_values = st.integers(-300, -1).map(lambda n: n * 0.010007)
LEVELS = ["token", "sequence", "average", "geometric_average"]


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """A few sequences of a few tokens, with unknown logprobs among them."""
    batch = Batch([], [], [], [], [])
    for s in range(draw(st.integers(1, 4))):
        advantage = draw(st.integers(-20, 20)) / 10
        for _ in range(draw(st.integers(1, 4))):
            batch.logprobs.append(draw(logprob_values))
            batch.sampled.append(draw(logprob_values | st.just(math.nan)))
            batch.reference.append(draw(logprob_values))
            batch.advantages.append(advantage)
            batch.sequences.append(s)
    return batch


@st.composite
def objectives(draw: st.DrawFn) -> TrainOptions:
    """Any combination of options that is not refused."""
    if draw(st.integers(0, 3)) == 0:
        options = TrainOptions(
            precalculate_logprobs=True,
            truncated_importance_sampling=draw(st.none() | st.sampled_from([0.7, 2.0])),
        )
    else:
        options = TrainOptions(
            epsilon=draw(st.sampled_from([0.2, 0.5, 1.0])),
            epsilon_high=draw(st.sampled_from([0.2, 0.28, 4.0])),
            ppo=draw(st.booleans()),
            importance_sampling_level=draw(st.sampled_from(LEVELS)),
            kimi_k2_tau=draw(st.sampled_from([0.0, 0.3])),
            mask_prob_ratio=draw(st.booleans()),
            max_negative_advantage_importance_sampling_weight=draw(
                st.none() | st.sampled_from([0.9, 1.1])
            ),
        )
    beta, kl_penalty_coef = draw(st.sampled_from([(0.0, 0.0), (0.1, 0.0), (0.0, 0.2)]))
    return replace(
        options,
        advantage_balance=draw(st.sampled_from([0.0, 0.5, -0.25, 1.0, -1.0])),
        beta=beta,
        kl_penalty_coef=kl_penalty_coef,
    )


def assert_as_plain(batch: Batch, options: TrainOptions, denominator: int, mean_kl: float) -> None:
    """Loss and gradient are those of the plain computation."""
    loss, gradient, _ = loss_and_gradient(batch, options, denominator, mean_kl)
    want = plain_loss(batch, batch.logprobs, options, denominator, mean_kl)
    assert loss == pytest.approx(want, rel=1e-9, abs=1e-9)
    want_gradient = plain_gradient(batch, options, denominator, mean_kl)
    assert gradient == pytest.approx(want_gradient, rel=1e-5, abs=1e-7)


@settings(max_examples=examples(200))
@given(batches(), objectives(), st.integers(1, 50), st.floats(-1, 1))
def test_loss_and_gradient_equal_a_plain_computation(
    batch: Batch, options: TrainOptions, denominator: int, mean_kl: float
) -> None:
    """Whatever the options, tensors give what a loop over tokens gives, and autograd what differences give."""
    assert_as_plain(batch, options, denominator, mean_kl)


@given(batches(), objectives(), st.floats(-1, 1), st.data())
def test_the_gradient_does_not_depend_on_how_the_batch_is_cut(
    batch: Batch, options: TrainOptions, mean_kl: float, data: st.DataObject
) -> None:
    """Rows of whole sequences, or with ratios of tokens any rows, add up to the whole: gradient, loss, metrics."""
    n = len(batch.logprobs)
    anywhere = options.importance_sampling_level == "token"
    cuts = [i for i in range(1, n) if anywhere or batch.sequences[i] != batch.sequences[i - 1]]
    chosen = data.draw(st.sets(st.sampled_from(cuts)) if cuts else st.just(set()))
    bounds = [0, *sorted(chosen), n]
    want_loss, want, whole = loss_and_gradient(batch, options, n, mean_kl)
    loss, got, total = 0.0, [], LossStatistics()
    for start, end in itertools.pairwise(bounds):
        part = batch.cut(list(range(start, end)))
        part_loss, gradient, statistics = loss_and_gradient(part, options, n, mean_kl)
        loss += part_loss
        got += gradient
        total.add(statistics)
    assert got == pytest.approx(want, rel=1e-9, abs=1e-12)
    assert loss == pytest.approx(want_loss, rel=1e-9, abs=1e-12)
    assert total.metrics() == pytest.approx(whole.metrics(), rel=1e-9, abs=1e-12)


# --- every option has an effect ---

SAMPLE = Batch(
    logprobs=[-0.4, -1.1, -2.0, -0.3, -1.9, -0.9],
    sampled=[-2.6, -1.0, -0.8, -1.5, -1.7, -1.2],
    advantages=[1.3, 1.3, 1.3, -0.7, -0.7, -0.7],
    sequences=[0, 0, 0, 1, 1, 1],
    reference=[-0.6, -0.9, -2.2, -0.8, -1.0, -1.3],
)
EFFECTS: list[dict[str, Any]] = [
    {"advantage_balance": 0.5},
    {"advantage_balance": -0.5},
    {"beta": 0.1},
    {"epsilon": 0.2},
    {"epsilon_high": 1.0},
    {"epsilon_high": None},
    {"importance_sampling_level": "sequence"},
    {"importance_sampling_level": "average"},
    {"importance_sampling_level": "geometric_average"},
    {"kimi_k2_tau": 0.1},
    {"kl_penalty_coef": 0.1},
    {"mask_prob_ratio": True},
    {"max_negative_advantage_importance_sampling_weight": 1.1},
    {"ppo": True},
    {"precalculate_logprobs": True},
    {"precalculate_logprobs": True, "truncated_importance_sampling": 2.0},
]
# What no gradient of a batch can show: a reference's logprobs come from outside, the data is made before, the
# frontend scales the learning rate itself, and hints change nothing.
ELSEWHERE = {
    "allow_training_without_logprobs",
    "kl_penalty_reference_step",
    "kl_ref_adapter_path",
    "logprob_calculation_chunk_size",
    "num_trajectories_learning_rate_multiplier_power",
    "plot_tensors",
    "scale_learning_rate_by_reward_std_dev",
    "scale_rewards",
}


def from_dev(**dev_config: Any) -> TrainOptions:
    """The options of a train call."""
    return TrainOptions.from_dev(dev_config, TrainConfig())


@pytest.mark.parametrize("changed", EFFECTS, ids=str)
def test_every_option_changes_the_gradient(changed: dict[str, Any]) -> None:
    """What is accepted has an effect, beside the option that it needs."""
    # The batch has one token outside even the default's wide bounds, for the mask: its ratio is 9.
    *needed, _ = changed
    plain = from_dev(**{name: changed[name] for name in needed})
    _, before, _ = loss_and_gradient(SAMPLE, plain, 6)
    _, after, _ = loss_and_gradient(SAMPLE, from_dev(**changed), 6)
    assert after != pytest.approx(before, rel=1e-3)


@pytest.mark.parametrize("ppo", [False, True])
@pytest.mark.parametrize("changed", EFFECTS, ids=str)
def test_every_option_has_its_formula(changed: dict[str, Any], ppo: bool) -> None:
    """On a batch on which all of them differ, with either objective where both take the option."""
    if ppo and "precalculate_logprobs" in changed:
        return  # refused: there is no ratio to clip
    assert_as_plain(SAMPLE, from_dev(**({"epsilon_high": 4.0, "ppo": ppo} | changed)), 6, 0.1)


def test_no_option_is_forgotten() -> None:
    """Each of upstream's options either changes the gradient above, or acts elsewhere."""
    tried = {name for changed in EFFECTS for name in changed}
    assert tried.isdisjoint(ELSEWHERE)
    assert tried | ELSEWHERE == set(DevTrainConfig.__annotations__) | {"beta"}


def test_dr_grpo_does_not_divide_by_the_spread() -> None:
    """Without `scale_rewards` the gradient is that of centred rewards."""
    rewards = [0.0, 0.2, 0.1]
    gradients = []
    for scale in (True, False):
        advantages = group_advantages(rewards, scale_by_std=scale)
        batch = Batch([-1.0] * 3, [-1.0] * 3, advantages, [0, 1, 2], [-1.0] * 3)
        gradients.append(loss_and_gradient(batch, TrainOptions())[1])
    std = math.sqrt(0.02 / 3)
    assert gradients[1] == pytest.approx([0.1, -0.1, 0.0])
    assert gradients[0] == pytest.approx([0.1 / std, -0.1 / std, 0.0], rel=1e-4, abs=1e-12)


# --- the objectives, by example ---


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
    logprobs = [-1.0, -1.0 + math.log(2), -1.0]  # ratios 1, 2, e^8
    batch = tokens(logprobs, [-1.0, -1.0, -9.0], [1.0, -1.0, 2.0])
    loss, gradient, statistics = loss_and_gradient(batch, TrainOptions(), denominator=4)
    assert gradient == pytest.approx([-1 / 4, 2 / 4, -5 * 2 / 4])
    assert loss == pytest.approx((1 + 2 * logprobs[1] + 5 * 2) / 4)
    metrics = statistics.metrics()
    assert metrics["clip_fraction"] == pytest.approx(1 / 3)
    assert metrics["ratio_min"] == 1.0
    assert metrics["ratio_max"] == pytest.approx(math.exp(8))
    assert metrics["num_trained_tokens"] == 3
    assert metrics["entropy"] == 1.0
    assert "kl_policy_ref" not in metrics


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [(1.0, 1.0, -1.0), (1.5, 1.0, 0.0), (1.5, -1.0, 1.5), (0.5, 1.0, -0.5), (0.5, -1.0, 0.0)],
)
def test_ppo_stops_the_gradient_where_the_ratio_has_moved_far_enough(
    ratio: float, advantage: float, expected: float
) -> None:
    """Beyond the clip range a token no longer pushes in its own direction, but may still be pulled back."""
    batch = tokens([-1.0 + math.log(ratio)], [-1.0], [advantage])
    _, gradient, _ = loss_and_gradient(batch, from_dev(ppo=True))
    assert gradient == pytest.approx([expected])


def test_gspo_pushes_a_sequence_as_a_whole() -> None:
    """Inside the clip range each token's gradient is minus the sequence's ratio times its advantage, outside it is 0.

    The ratio is the geometric mean of the tokens' ratios; here it is 2 and, in the second sequence, 16.
    """
    batch = Batch(
        logprobs=[-1.0, -1.0, -1.0, -1.0],
        sampled=[-1.0, -1.0 - 2 * math.log(2), -1.0 - 4 * math.log(2), -1.0 - 4 * math.log(2)],
        advantages=[0.5, 0.5, 1.0, 1.0],
        sequences=[0, 0, 1, 1],
        reference=[-1.0] * 4,
    )
    options = from_dev(ppo=True, importance_sampling_level="sequence", epsilon_high=4.0)
    loss, gradient, statistics = loss_and_gradient(batch, options, denominator=4)
    assert loss == pytest.approx(-(2 * 0.5 * 2 + 2 * 1.0 * 5) / 4)
    assert gradient == pytest.approx([-2 * 0.5 / 4] * 2 + [0.0, 0.0])
    assert statistics.metrics()["ratio_max"] == pytest.approx(16)
    assert statistics.metrics()["clip_fraction"] == 0.5


def test_a_mask_leaves_out_what_a_clip_would_keep() -> None:
    """A token out of bounds has neither loss nor gradient, with either objective."""
    batch = tokens([-1.0, -1.0], [-1.0 - math.log(9), -1.0], [-1.0, -1.0])
    for ppo in (False, True):
        options = TrainOptions(epsilon_high=4.0, ppo=ppo)
        assert loss_and_gradient(batch, options)[1][0] == pytest.approx(9.0 if ppo else 5.0)
        masked = replace(options, mask_prob_ratio=True)
        loss, gradient, statistics = loss_and_gradient(batch, masked)
        assert gradient == pytest.approx([0.0, 1.0])
        assert loss == pytest.approx(1.0 if ppo else -1.0)
        assert statistics.metrics()["clip_fraction"] == 0.5


def test_the_cap_holds_where_the_advantage_is_negative_only() -> None:
    """A good token keeps its full ratio."""
    batch = tokens([-1.0, -1.0], [-1.0 - math.log(3)] * 2, [1.0, -1.0])
    options = from_dev(max_negative_advantage_importance_sampling_weight=1.5)
    _, gradient, statistics = loss_and_gradient(batch, options)
    assert gradient == pytest.approx([-3.0, 1.5])
    assert statistics.metrics()["clip_fraction"] == 0.5


def test_truncation_bounds_the_correction_of_the_samplers_numerics() -> None:
    """The ratio is 1, and the weight is the trainer's probability over the sampler's, at most the bound."""
    batch = tokens([-1.0, -1.0], [-1.0 - math.log(3), -1.0 + math.log(2)], [1.0, 1.0])
    options = from_dev(precalculate_logprobs=True, truncated_importance_sampling=2.0)
    _, gradient, statistics = loss_and_gradient(batch, options)
    assert gradient == pytest.approx([-2.0, -0.5])
    assert statistics.metrics()["ratio_min"] == statistics.metrics()["ratio_max"] == 1.0
    assert statistics.metrics()["mismatch_kl"] > 0.1


def test_the_kl_penalty_moves_advantages_around_their_mean() -> None:
    """A token further from the reference than the batch's mean loses what one nearer gains."""
    batch = Batch([-1.0, -2.0], [-1.0, -2.0], [0.0, 0.0], [0, 1], [-1.5, -1.5])
    _, gradient, statistics = loss_and_gradient(batch, from_dev(kl_penalty_coef=0.1), mean_kl=0.0)
    assert gradient == pytest.approx([0.05, -0.05])  # likelier than the reference: made less likely
    assert statistics.metrics()["kl_policy_ref"] == pytest.approx(0.0)
    _, gradient, _ = loss_and_gradient(batch, from_dev(kl_penalty_coef=0.1), mean_kl=0.2)
    assert gradient == pytest.approx([0.03, -0.07])


def test_beta_adds_the_kl_divergence_to_the_loss() -> None:
    """At the reference there is neither loss nor gradient; away from it, the gradient leads back."""
    batch = Batch([-1.0, -1.0], [-1.0, -1.0], [0.0, 0.0], [0, 0], [-1.0, -1.0 + math.log(2)])
    loss, gradient, _ = loss_and_gradient(batch, from_dev(beta=0.5), denominator=2)
    assert loss == pytest.approx(0.5 * (2 - math.log(2) - 1) / 2)
    assert gradient == pytest.approx([0.0, -0.25])


def test_a_kl_term_without_its_reference_is_an_error() -> None:
    """It is never left out in silence."""
    n = torch.zeros(1)
    targets = Targets(n.long(), n, n, n, n.long())
    with pytest.raises(TrainingError, match="reference"):
        policy_loss(n, n, targets, from_dev(beta=0.1), 1)


# --- nothing that is not finite, and no extreme, spoils the rest ---

KINDS = [
    TrainOptions(),
    from_dev(ppo=True),
    from_dev(ppo=True, importance_sampling_level="sequence"),
    from_dev(importance_sampling_level="average"),
    from_dev(importance_sampling_level="geometric_average", mask_prob_ratio=True),
    from_dev(max_negative_advantage_importance_sampling_weight=2.0, kimi_k2_tau=0.1),
    from_dev(precalculate_logprobs=True, truncated_importance_sampling=2.0),
    from_dev(kl_penalty_coef=0.1),
    from_dev(beta=0.1),
]


@pytest.mark.parametrize("options", KINDS, ids=str)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_c138_a_sampled_logprob_that_is_not_finite_touches_no_other_token(
    options: TrainOptions, bad: float
) -> None:
    """Its own ratio counts as 1; loss and metrics are finite, other sequences have the gradient they had."""
    batch = replace(SAMPLE, sampled=[bad, *SAMPLE.sampled[1:]])
    loss, gradient, statistics = loss_and_gradient(batch, options)
    _, want, _ = loss_and_gradient(SAMPLE, options)
    assert math.isfinite(loss)
    assert all(map(math.isfinite, [*gradient, *statistics.metrics().values()]))
    assert gradient[3:] == want[3:]
    same = replace(SAMPLE, sampled=[SAMPLE.logprobs[0], *SAMPLE.sampled[1:]])
    assert gradient == loss_and_gradient(same, options)[1]


@pytest.mark.parametrize("options", KINDS, ids=str)
@pytest.mark.parametrize("advantage", [0.0, 1.0])
@pytest.mark.parametrize("sampled", [-1.0, math.nan])
def test_a_token_that_the_model_rules_out_leaves_everything_finite(
    options: TrainOptions, advantage: float, sampled: float
) -> None:
    """A log probability of minus infinity has no gradient, and nothing is zero times infinity."""
    batch = replace(
        SAMPLE,
        logprobs=[-math.inf, *SAMPLE.logprobs[1:]],
        sampled=[sampled, *SAMPLE.sampled[1:]],
        advantages=[advantage, *SAMPLE.advantages[1:]],
    )
    loss, gradient, statistics = loss_and_gradient(batch, options)
    assert math.isfinite(loss)
    assert all(map(math.isfinite, [*gradient, *statistics.metrics().values()]))
    assert gradient[0] == 0.0
    assert gradient[3:] == loss_and_gradient(SAMPLE, options)[1][3:]


def test_a_token_that_both_rule_out_has_a_ratio_of_one() -> None:
    """Minus infinity less minus infinity is no difference, and not NaN, which a mean would carry to every token."""
    both, one = torch.tensor([-math.inf, -1.0]), torch.tensor([-math.inf, -math.inf])
    assert bounded_log_ratio(both, one).tolist() == [0.0, 20.0]
    assert bounded_log_ratio(one, both).tolist() == [0.0, -20.0]


@pytest.mark.parametrize("options", KINDS, ids=str)
@pytest.mark.parametrize("sampled", [-2000.0, 0.0])
def test_an_extreme_ratio_stays_finite_in_single_precision(
    options: TrainOptions, sampled: float
) -> None:
    """The logarithm of the ratio is bounded, so that nothing overflows."""
    batch = tokens([-500.0, -1.0], [sampled, -1.0], [-1.0, 1.0])
    loss, gradient, statistics = loss_and_gradient(batch, options, dtype=torch.float32)
    assert all(abs(x) < 1e30 for x in [loss, *gradient, *statistics.metrics().values()])


def test_an_unknown_logprob_counts_as_a_ratio_of_one() -> None:
    """NaN stands for a token sampled from the policy in training."""
    _, gradient, statistics = loss_and_gradient(tokens([-3.0], [math.nan], [2.0]), TrainOptions())
    assert gradient == [-2.0]
    assert statistics.metrics()["ratio_mean"] == 1.0
    assert statistics.metrics()["mismatch_kl"] == 0.0


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_c128_no_trained_token_gives_a_finite_zero(options: TrainOptions) -> None:
    """An empty row, or batch, has loss 0 and no ratio to report."""
    loss, _, statistics = loss_and_gradient(tokens([], [], []), options, denominator=0)
    assert loss == 0.0
    assert statistics.metrics() == {"loss": 0.0, "num_trained_tokens": 0.0}


# --- statistics ---


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_c140_the_mismatch_of_sampler_and_trainer_is_measured(options: TrainOptions) -> None:
    """`mismatch_kl` is the mean of r - log r - 1 over tokens, whatever the objective's own ratio is."""
    agree = replace(SAMPLE, sampled=SAMPLE.logprobs)
    assert loss_and_gradient(agree, options)[2].metrics()["mismatch_kl"] == 0.0
    differ = replace(agree, sampled=[SAMPLE.logprobs[0] - 0.1, *SAMPLE.logprobs[1:]])
    mismatch = loss_and_gradient(differ, options)[2].metrics()["mismatch_kl"]
    assert mismatch == pytest.approx((math.exp(0.1) - 0.1 - 1) / 6)


def test_c140_tokens_that_the_sampler_saw_otherwise_can_be_bounded() -> None:
    """With an unchanged policy 3 of 40 tokens have ratios outside 0.9 to 1.1: told by the metrics, and capped."""
    sampled = [-1.0] * 37 + [-1.0 - math.log(r) for r in (0.5, 1.3, 3.0)]
    batch = tokens([-1.0] * 40, sampled, [1.0] * 40)
    _, gradient, statistics = loss_and_gradient(batch, from_dev(epsilon=0.1, epsilon_high=0.1))
    metrics = statistics.metrics()
    assert metrics["clip_fraction"] == pytest.approx(0.075)
    assert (metrics["ratio_min"], metrics["ratio_max"]) == pytest.approx((0.5, 3.0))
    assert metrics["mismatch_kl"] > 0.01
    assert gradient[37:] == pytest.approx([-0.9, -1.1, -1.1])
    capped = from_dev(precalculate_logprobs=True, truncated_importance_sampling=1.1)
    assert loss_and_gradient(batch, capped)[1][37:] == pytest.approx([-0.5, -1.1, -1.1])
