from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from art.adapter_kit.sequences import TrainingSequence
from art_local.config import OptimizerSettings, WorkerSettings
from art_local.packing import micro_batches
from art_local.policy import Policy
from art_local.train import accumulate_gradients, train_step
from art_local.train_options import TrainOptions

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.local


@pytest.fixture(scope="module")
def warm_policy(tiny_model_dir: Path) -> Policy:
    """One policy for the module; loading it is what takes time."""
    torch.set_num_threads(1)
    return Policy(WorkerSettings(str(tiny_model_dir)))


@pytest.fixture
def policy(warm_policy: Policy) -> Policy:
    """The policy with an adapter that does something: B is not zero."""
    warm_policy.reset()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in warm_policy.parameters.values():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
            parameter.grad = None
    return warm_policy


def random_batch(seed: int = 0, count: int = 12) -> list[TrainingSequence]:
    """Sequences of two turns with different lengths, temperatures and advantages."""
    r = random.Random(seed)
    batch = []
    for _ in range(count):
        lengths = [
            r.randrange(1, 9) for _ in range(4)
        ]  # prompt, completion, tool result, completion
        trained = [t for n, t in zip(lengths, (0, 1, 0, 1), strict=True) for t in [bool(t)] * n]
        temperature = r.choice([0.7, 1.0])
        batch.append(
            TrainingSequence(
                [r.randrange(200) for _ in trained],
                trained,
                [r.uniform(-8, -3) if t else 0.0 for t in trained],
                [temperature if t else 1.0 for t in trained],
                r.uniform(-2, 2),
            )
        )
    return batch


def num_trained(batch: list[TrainingSequence]) -> int:
    """Tokens of a batch that are trained."""
    return sum(sequence.trained.count(True) for sequence in batch)


def nothing_to_cancel() -> None:
    """No cancellation."""


def gradients(
    policy: Policy, batch: list[TrainingSequence], options: TrainOptions, max_tokens: int
) -> tuple[float, dict[str, torch.Tensor]]:
    """The loss and gradient that the trainer computes."""
    policy.optimizer.zero_grad(set_to_none=True)
    batches = micro_batches(batch, max_tokens)
    statistics = accumulate_gradients(
        policy, batches, options, num_trained(batch), nothing_to_cancel
    )
    grads = {name: p.grad.clone() for name, p in policy.parameters.items() if p.grad is not None}
    return statistics.loss, grads


def reference(
    policy: Policy, batch: list[TrainingSequence], options: TrainOptions
) -> tuple[float, dict[str, torch.Tensor]]:
    """The same, written plainly: one sequence at a time, one token at a time, all logits."""
    policy.optimizer.zero_grad(set_to_none=True)
    total = sum(sum(s.trained) for s in batch)
    loss = torch.zeros(())
    for s in batch:
        logits = policy.model(input_ids=torch.tensor([s.token_ids])).logits[0]
        for i, trained in enumerate(s.trained):
            if trained:
                probabilities = torch.softmax(logits[i - 1] / s.temperatures[i], dim=-1)
                logprob = probabilities[s.token_ids[i]].log()
                ratio = torch.exp(logprob - s.logprobs[i])
                clipped = ratio.clip(1 - options.epsilon, 1 + options.epsilon_high)
                if options.ppo:
                    gain = torch.minimum(ratio * s.advantage, clipped * s.advantage)
                else:
                    gain = clipped.detach() * s.advantage * logprob
                loss = loss - gain / total
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it without annotations
    grads = {name: p.grad.clone() for name, p in policy.parameters.items() if p.grad is not None}
    return loss.item(), grads


def assert_same(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> None:
    """Gradients agree to 1e-5 of the largest entry."""
    assert got.keys() == want.keys()
    largest = max(tensor.abs().max().item() for tensor in want.values())
    for name, tensor in want.items():
        assert (got[name] - tensor).abs().max().item() <= 1e-5 * largest, name


@pytest.mark.parametrize("max_tokens", [1, 40, 10_000])
@pytest.mark.parametrize("options", [TrainOptions(), TrainOptions(0.2, 0.2, ppo=True)])
def test_loss_and_gradient_equal_a_plain_reference(
    policy: Policy, options: TrainOptions, max_tokens: int
) -> None:
    """However the batch is cut, the result is that of one sequence at a time."""
    batch = random_batch()
    want_loss, want = reference(policy, batch, options)
    loss, got = gradients(policy, batch, options, max_tokens)
    assert loss == pytest.approx(want_loss, rel=1e-5)
    assert_same(got, want)


def test_the_order_of_the_batch_does_not_matter(policy: Policy) -> None:
    """A permuted batch has the same gradient."""
    batch = random_batch()
    _, want = gradients(policy, batch, TrainOptions(), 60)
    random.Random(5).shuffle(batch)
    _, got = gradients(policy, batch, TrainOptions(), 60)
    assert_same(got, want)


@torch.no_grad()
def sample(model: Any, prompt: list[int], count: int, temperature: float) -> TrainingSequence:
    """Sample from a plain transformers model, one forward pass for each token."""
    generator = torch.Generator().manual_seed(len(prompt))
    ids, logprobs = list(prompt), []
    for _ in range(count):
        logits = model(input_ids=torch.tensor([ids])).logits[0, -1] / temperature
        token = int(torch.multinomial(torch.softmax(logits, -1), 1, generator=generator))
        logprobs.append(torch.log_softmax(logits, -1)[token].item())
        ids.append(token)
    zeros = [0.0] * len(prompt)
    return TrainingSequence(
        ids,
        [False] * len(prompt) + [True] * count,
        zeros + logprobs,
        [1.0] * len(prompt) + [temperature] * count,
        1.0,
    )


def test_the_ratio_is_one_where_sampler_and_trainer_hold_the_same_weights(
    policy: Policy, tmp_path: Path
) -> None:
    """The saved adapter, loaded by peft into a plain model, samples with the trainer's own probabilities."""
    from peft import PeftModel

    policy.save(tmp_path, 1)
    base = AutoModelForCausalLM.from_pretrained(
        policy.model.peft_config["default"].base_model_name_or_path
    )
    sampler = PeftModel.from_pretrained(base, tmp_path).eval()
    batch = [
        sample(sampler, list(range(1, n)), 2 * n, t) for n, t in ((3, 1.0), (9, 0.5), (5, 2.0))
    ]
    batch[0].advantage = -1.0
    metrics = step(policy, batch)
    assert metrics["ratio_min"] == pytest.approx(1.0, abs=1e-4)
    assert metrics["ratio_max"] == pytest.approx(1.0, abs=1e-4)
    assert metrics["mismatch_kl"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["clip_fraction"] == 0.0


def step(
    policy: Policy,
    batch: list[TrainingSequence],
    learning_rate: float = 1e-3,
    max_grad_norm: float = 1.0,
) -> dict[str, float]:
    """One train step with default options."""
    settings = WorkerSettings("unused", optimizer=OptimizerSettings(max_grad_norm=max_grad_norm))
    return train_step(
        policy,
        batch,
        TrainOptions(),
        learning_rate=learning_rate,
        num_action_tokens=num_trained(batch),
        settings=settings,
        check_cancelled=nothing_to_cancel,
    )


def weights(policy: Policy) -> dict[str, torch.Tensor]:
    """A copy of the adapter."""
    return {name: p.detach().clone() for name, p in policy.parameters.items()}


def largest_move(policy: Policy, before: dict[str, torch.Tensor]) -> float:
    """How far the weight that moved most has moved."""
    return max((p.detach() - before[n]).abs().max().item() for n, p in policy.parameters.items())


def test_c145_every_weight_moves_by_the_learning_rate_in_the_first_step(policy: Policy) -> None:
    """AdamW's first step is the learning rate in the gradient's direction, however small (T2)."""
    before = weights(policy)
    metrics = step(policy, random_batch(), learning_rate=1e-6)
    assert largest_move(policy, before) == pytest.approx(1e-6, rel=0.1)
    assert all((p != before[n]).any() for n, p in policy.parameters.items())
    assert metrics["num_skipped_gradient_steps"] == 0
    assert metrics["num_gradient_steps"] == 1
    assert metrics["grad_norm"] > 0


def test_a_step_makes_good_tokens_likelier_and_bad_ones_less(policy: Policy) -> None:
    """The sign of the advantage is the direction of the change."""

    def mean_logprob(sequence: TrainingSequence) -> float:
        scored = sample_logprobs(policy, sequence)
        return sum(scored) / len(scored)

    good, bad = random_batch(count=2)
    good.advantage, bad.advantage = 1.0, -1.0
    before = mean_logprob(good), mean_logprob(bad)
    step(policy, [good, bad], learning_rate=1e-3)
    assert mean_logprob(good) > before[0]
    assert mean_logprob(bad) < before[1]


@torch.no_grad()
def sample_logprobs(policy: Policy, s: TrainingSequence) -> list[float]:
    """Log probabilities of the trained tokens under the policy."""
    logprobs = policy.model(input_ids=torch.tensor([s.token_ids])).logits[0].log_softmax(-1)
    return [logprobs[i - 1, s.token_ids[i]].item() for i, t in enumerate(s.trained) if t]


def test_c128_nothing_to_learn_leaves_the_weights_alone(policy: Policy) -> None:
    """Zero advantages, or no trained token, move nothing even where AdamW still has momentum."""
    step(policy, random_batch())
    before = weights(policy)
    indifferent = random_batch()
    for sequence in indifferent:
        sequence.advantage = 0.0
    masked = [TrainingSequence([1, 2], [False, False], [0.0, 0.0], [1.0, 1.0], 1.0, num_masked=1)]
    for batch in (indifferent, masked, []):
        metrics = step(policy, batch)
        assert metrics["num_skipped_gradient_steps"] == 1
        assert metrics["loss"] == 0.0
        assert largest_move(policy, before) == 0.0


def test_c148_a_gradient_that_is_not_finite_skips_the_step_and_names_a_tensor(
    policy: Policy, caplog: pytest.LogCaptureFixture
) -> None:
    """The weights stay as they were, all metrics are finite, and the next step is a normal one."""
    before = weights(policy)
    poisoned = random_batch()
    poisoned[3].advantage = math.inf
    metrics = step(policy, poisoned)
    assert metrics["num_skipped_gradient_steps"] == 1
    assert all(map(math.isfinite, metrics.values()))
    assert largest_move(policy, before) == 0.0
    assert "lora_" in caplog.text
    assert step(policy, random_batch())["num_skipped_gradient_steps"] == 0


def test_the_gradient_is_clipped_to_the_maximal_norm(policy: Policy) -> None:
    """The reported norm is the one before clipping; AdamW's average holds the clipped gradient."""
    norm = step(policy, random_batch(), max_grad_norm=1e-3)["grad_norm"]
    assert norm > 1e-2
    averages = [policy.optimizer.state[p]["exp_avg"] for p in policy.parameters.values()]
    clipped = torch.cat([a.flatten() for a in averages]).norm().item() / (1 - 0.9)
    assert clipped == pytest.approx(1e-3, rel=1e-2)


def test_a_cancelled_step_leaves_the_weights_alone(policy: Policy) -> None:
    """The check between micro-batches ends the step."""
    before = weights(policy)
    calls: list[None] = []

    def cancel_at_third() -> None:
        calls.append(None)
        if len(calls) == 3:
            raise InterruptedError

    settings = WorkerSettings("unused", micro_batch_tokens=1)
    with pytest.raises(InterruptedError):
        train_step(
            policy,
            random_batch(),
            TrainOptions(),
            learning_rate=1.0,
            num_action_tokens=1,
            settings=settings,
            check_cancelled=cancel_at_third,
        )
    assert len(calls) == 3
    assert largest_move(policy, before) == 0.0


def test_only_the_adapter_is_trained(policy: Policy) -> None:
    """The base model keeps its weights."""
    base = {n: p.clone() for n, p in policy.model.named_parameters() if n not in policy.parameters}
    step(policy, random_batch(), learning_rate=0.1)
    for name, parameter in policy.model.named_parameters():
        assert name in policy.parameters or torch.equal(parameter, base[name])
