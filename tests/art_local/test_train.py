from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM

from art.adapter_kit.sequences import TrainingSequence
from art_local.config import OptimizerSettings, WorkerSettings
from art_local.packing import Layout, pack
from art_local.policy import Policy
from art_local.train import accumulate_gradients, train_step
from art_local.train_options import TrainOptions
from tests.profiles import examples

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.local

layouts = st.sampled_from(["shared", "packed", "padded"])


@pytest.fixture(scope="module")
def warm_policy(tiny_model_dir: Path) -> Policy:
    """One policy for the module; loading it is what takes time."""
    torch.set_num_threads(1)
    return Policy(WorkerSettings(str(tiny_model_dir)))


@pytest.fixture
def policy(warm_policy: Policy) -> Policy:
    """The policy with an adapter that does something: B is not zero."""
    randomise(warm_policy)
    return warm_policy


def randomise(policy: Policy) -> None:
    """Start afresh, with a random adapter that is the same each time."""
    policy.reset()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policy.parameters.values():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
            parameter.grad = None


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


def grouped_batch(seed: int = 0) -> list[TrainingSequence]:
    """The same, and groups of three that begin alike."""
    r = random.Random(seed)
    batch = random_batch(seed, count=3)
    for first in batch.copy():
        for _ in range(2):
            cut = r.randrange(1, len(first.token_ids))
            own = [r.randrange(200) for _ in range(r.randrange(1, 6))]
            batch.append(
                TrainingSequence(
                    first.token_ids[:cut] + own,
                    first.trained[:cut] + [True] * len(own),
                    first.logprobs[:cut] + [-5.0] * len(own),
                    first.temperatures[:cut] + [1.0] * len(own),
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
    policy: Policy,
    batch: list[TrainingSequence],
    options: TrainOptions,
    row_tokens: int,
    layout: Layout = "shared",
) -> tuple[float, dict[str, torch.Tensor]]:
    """The loss and gradient that the trainer computes."""
    policy.optimizer.zero_grad(set_to_none=True)
    rows = pack(batch, row_tokens, layout, min_shared=2)
    statistics = accumulate_gradients(
        policy,
        [(row, True) for row in rows],
        [None] * len(rows),
        options,
        num_trained(batch),
        nothing_to_cancel,
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


@pytest.mark.parametrize("layout", ["shared", "packed", "padded"])
@pytest.mark.parametrize("row_tokens", [1, 60, 10_000])
@pytest.mark.parametrize("options", [TrainOptions(), TrainOptions(0.2, 0.2, ppo=True)])
def test_loss_and_gradient_equal_a_plain_reference(
    policy: Policy, options: TrainOptions, row_tokens: int, layout: Layout
) -> None:
    """However the batch is packed, the result is that of one sequence at a time."""
    batch = grouped_batch()
    want_loss, want = reference(policy, batch, options)
    loss, got = gradients(policy, batch, options, row_tokens, layout)
    assert loss == pytest.approx(want_loss, rel=1e-5)
    assert_same(got, want)


@given(seed=st.integers(0, 10_000), row_tokens=st.integers(1, 200), layout=layouts)
@settings(max_examples=examples(15))
def test_the_gradient_depends_on_neither_order_nor_packing(
    warm_policy: Policy, seed: int, row_tokens: int, layout: Layout
) -> None:
    """A permuted batch, packed anyhow, has the gradient of the padded one."""
    randomise(warm_policy)
    batch = grouped_batch(seed)
    _, want = gradients(warm_policy, batch, TrainOptions(), 10_000, "padded")
    random.Random(seed).shuffle(batch)
    _, got = gradients(warm_policy, batch, TrainOptions(), row_tokens, layout)
    assert_same(got, want)


def test_checkpointed_gradients_are_the_same(tiny_model_dir: Path, policy: Policy) -> None:
    """What is computed twice is computed alike, and without dropout."""
    batch = grouped_batch()
    _, want = gradients(policy, batch, TrainOptions(), 1000)
    other = Policy(WorkerSettings(str(tiny_model_dir), gradient_checkpointing=True))
    randomise(other)
    calls: list[None] = []
    layer = other.model.get_base_model().model.layers[0].mlp
    layer.register_forward_pre_hook(lambda *_: calls.append(None))
    _, got = gradients(other, batch, TrainOptions(), 1000)
    assert len(calls) == 2
    assert_same(got, want)


def test_checkpointing_switches_no_dropout_on(tmp_path: Path) -> None:
    """Nor that of layers which hand a rate of their own to a function."""
    config = AutoConfig.for_model(
        "opt",
        vocab_size=50,
        hidden_size=32,
        ffn_dim=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        word_embed_proj_dim=32,
        dropout=0.5,
        attention_dropout=0.5,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    found: list[dict[str, torch.Tensor]] = []
    for checkpointing in (False, True):
        opt = Policy(WorkerSettings(str(tmp_path), gradient_checkpointing=checkpointing))
        randomise(opt)
        batch = [
            TrainingSequence([1, 2, 3, n], [False] * 3 + [True], [0.0] * 4, [1.0] * 4, 1.0)
            for n in (4, 5)
        ]
        found.append(gradients(opt, batch, TrainOptions(), 1000)[1])
    assert_same(*found)


def test_a_row_that_does_not_count_adds_nothing(policy: Policy) -> None:
    """It is there to keep processes in step; the loss and the gradient are those of the others."""
    batch = grouped_batch()
    want_loss, want = gradients(policy, batch, TrainOptions(), 10_000)
    policy.optimizer.zero_grad(set_to_none=True)
    (row,) = pack(batch, 10_000, "shared", min_shared=2)
    statistics = accumulate_gradients(
        policy,
        [(row, True), (row, False)],
        [None, None],
        TrainOptions(),
        num_trained(batch),
        nothing_to_cancel,
    )
    assert statistics.loss == want_loss
    assert_same({n: p.grad for n, p in policy.parameters.items() if p.grad is not None}, want)


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
    options: TrainOptions | None = None,
) -> dict[str, float]:
    """One train step, with default options unless told otherwise."""
    settings = WorkerSettings("unused", optimizer=OptimizerSettings(max_grad_norm=max_grad_norm))
    return train_step(
        policy,
        batch,
        options or TrainOptions(),
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


def test_c145_the_adapter_of_a_half_precision_model_moves_at_a_small_learning_rate(
    tiny_model_dir: Path,
) -> None:
    """The base model is bfloat16, in which such a step would round to nothing; what is trained is not."""
    policy = Policy(WorkerSettings(str(tiny_model_dir), dtype="bfloat16"))
    randomise(policy)
    before = weights(policy)
    assert step(policy, random_batch(), learning_rate=1e-6)["num_skipped_gradient_steps"] == 0
    assert all((p != before[n]).any() for n, p in policy.parameters.items())
    kinds = {n: p.dtype for n, p in policy.model.named_parameters()}
    assert {kinds[n] for n in policy.parameters} == {torch.float32}
    assert {kinds[n] for n in kinds.keys() - policy.parameters} == {torch.bfloat16}
    moments = {p.dtype for s in policy.optimizer.state.values() for p in s.values()}
    assert moments == {torch.float32}


def test_half_precision_gradients_are_near_those_of_single_precision(
    tiny_model_dir: Path, policy: Policy
) -> None:
    """Within three percent of their norm."""
    _, want = gradients(policy, grouped_batch(), TrainOptions(), 1000)
    half = Policy(WorkerSettings(str(tiny_model_dir), dtype="bfloat16"))
    randomise(half)
    _, got = gradients(half, grouped_batch(), TrainOptions(), 1000)
    error = sum((got[n] - w).square().sum() for n, w in want.items())
    assert error <= 0.03**2 * sum(w.square().sum() for w in want.values())


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


def test_a_kl_term_gives_a_signal_of_its_own(policy: Policy) -> None:
    """Where all advantages are zero, the pull towards the base model still moves the weights."""
    before = weights(policy)
    batch = random_batch()
    for sequence in batch:
        sequence.advantage = 0.0
    metrics = step(policy, batch, options=TrainOptions(beta=0.1))
    assert metrics["num_skipped_gradient_steps"] == 0
    assert metrics["kl_policy_ref"] > 0
    assert largest_move(policy, before) > 0


def test_the_metrics_tell_where_time_and_tokens_went(policy: Policy) -> None:
    """What is shared is packed once."""
    batch = [s for s in grouped_batch() for _ in range(2)]
    metrics = step(policy, batch)
    assert metrics["num_trained_tokens"] == num_trained(batch)
    assert 0 < metrics["num_packed_tokens"] <= sum(len(s.token_ids) for s in batch) / 2
    assert 0 < metrics["packing_efficiency"] <= 1
    times = [
        metrics[f"{part}_s"] for part in ("pack", "reference", "forward_backward", "optimizer")
    ]
    assert all(seconds >= 0 for seconds in times)
    logical = sum(len(s.token_ids) - 1 for s in batch)  # each ends with a trained token
    assert metrics["tokens_per_s"] == pytest.approx(logical / sum(times))


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
    """The check between rows ends the step."""
    before = weights(policy)
    calls: list[None] = []

    def cancel_at_third() -> None:
        calls.append(None)
        if len(calls) == 3:
            raise InterruptedError

    policy.row_tokens, usual = 1, policy.row_tokens
    try:
        with pytest.raises(InterruptedError):
            train_step(
                policy,
                random_batch(),
                TrainOptions(),
                learning_rate=1.0,
                num_action_tokens=1,
                settings=WorkerSettings("unused"),
                check_cancelled=cancel_at_third,
            )
    finally:
        policy.row_tokens = usual
    assert len(calls) == 3
    assert largest_move(policy, before) == 0.0


def test_only_the_adapter_is_trained(policy: Policy) -> None:
    """The base model keeps its weights."""
    base = {n: p.clone() for n, p in policy.model.named_parameters() if n not in policy.parameters}
    step(policy, random_batch(), learning_rate=0.1)
    for name, parameter in policy.model.named_parameters():
        assert name in policy.parameters or torch.equal(parameter, base[name])
