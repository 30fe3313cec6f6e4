from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from art.adapter_kit.sequences import TrainingSequence
from art_local.config import WorkerSettings
from art_local.forward import row_logprobs
from art_local.packing import Layout, pack
from art_local.policy import Policy
from tests.art_local.models import VOCABULARY, save_model
from tests.profiles import examples

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.local

# One that sees all, one with a window, one with both and twists of its own on norms and embeddings.
PACKING_KINDS = ("qwen3", "mistral", "gemma3")


@pytest.fixture(scope="module")
def policy_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Policy]:
    """Policies whose adapters do something, one for each kind of model."""
    made: dict[str, Policy] = {}

    def make(kind: str, **options: int | str) -> Policy:
        key = f"{kind} {options}"
        if key not in made:
            directory: Path = save_model(tmp_path_factory.mktemp("model"), kind)
            made[key] = Policy(WorkerSettings(str(directory), **options))  # type: ignore[arg-type]
            generator = torch.Generator().manual_seed(1)
            with torch.no_grad():
                for parameter in made[key].parameters.values():
                    parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
        return made[key]

    torch.set_num_threads(1)
    return make


def groups(seed: int, *, num_groups: int = 2, size: int = 3) -> list[TrainingSequence]:
    """Groups with a prompt each; some of a group share a first turn as well."""
    r = random.Random(seed)

    def ids(least: int, most: int) -> list[int]:
        return [r.randrange(VOCABULARY) for _ in range(r.randint(least, most))]

    batch = []
    for _ in range(num_groups):
        prompt, turn = ids(4, 20), ids(2, 8)
        for _ in range(size):
            context = prompt + (turn if r.random() < 0.5 else [])
            completion = ids(1, 12)
            trained = [False] * len(context) + [True] * len(completion)
            temperature = r.choice([0.7, 1.0])
            batch.append(
                TrainingSequence(
                    context + completion,
                    trained,
                    [r.uniform(-6, -2) if t else 0.0 for t in trained],
                    [temperature if t else 1.0 for t in trained],
                    r.uniform(-2, 2),
                )
            )
    return batch


def logprobs_in_order(
    policy: Policy, batch: list[TrainingSequence], layout: Layout, row_tokens: int = 1000
) -> list[tuple[float, torch.Tensor]]:
    """Log probabilities of each sequence's targets, found again by its advantage."""
    found = []
    for row in pack(batch, row_tokens, layout, min_shared=2):
        logprobs, _ = row_logprobs(policy, row)
        sizes = torch.bincount(row.targets.sequence_N).tolist()
        advantages = torch.split(row.targets.advantages_N, sizes)
        found += [
            (float(a[0]), lp)
            for a, lp in zip(advantages, torch.split(logprobs, sizes), strict=True)
        ]
    return sorted(found, key=lambda pair: pair[0])


@torch.no_grad()
def alone(policy: Policy, s: TrainingSequence) -> torch.Tensor:
    """Log probabilities of one sequence by a plain call of the model with nothing else in it."""
    logits = policy.model(input_ids=torch.tensor([s.token_ids])).logits[0]
    targets = [i for i, trained in enumerate(s.trained) if trained]
    return torch.stack(
        [(logits[i - 1] / s.temperatures[i]).log_softmax(-1)[s.token_ids[i]] for i in targets]
    )


@pytest.mark.parametrize("kind", [*PACKING_KINDS, "granite", "gemma2"])
def test_c143_packed_sequences_score_as_they_do_alone(
    policy_of: Callable[..., Policy], kind: str
) -> None:
    """Two sequences in one row are not one long sequence: each has the log probabilities of its own call."""
    # The padded policy attends as transformers made it to.
    policy, plain = policy_of(kind), policy_of(kind, layout="padded")
    batch = sorted(groups(3), key=lambda s: s.advantage)
    for layout in ("shared", "packed", "padded") if policy.layout == "shared" else ("padded",):
        for (_, got), sequence in zip(logprobs_in_order(policy, batch, layout), batch, strict=True):
            torch.testing.assert_close(got, alone(plain, sequence), rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", PACKING_KINDS)
@pytest.mark.parametrize("layout", ["shared", "packed"])
@given(seed=st.integers(0, 1000), changed=st.integers(0, 5), token=st.integers(0, VOCABULARY - 1))
@settings(max_examples=examples(10))
def test_no_branch_leaks_into_another(
    policy_of: Callable[..., Policy],
    kind: str,
    layout: Layout,
    seed: int,
    changed: int,
    token: int,
) -> None:
    """Other tokens in one completion change no log probability of any other sequence."""
    policy = policy_of(kind)
    batch = groups(seed)
    with torch.no_grad():
        before = dict(logprobs_in_order(policy, batch, layout))
        own = batch[changed]
        for i, trained in enumerate(own.trained):
            if trained:
                own.token_ids[i] = token
        after = dict(logprobs_in_order(policy, batch, layout))
    assert before.keys() == after.keys()
    for advantage, logprobs in before.items():
        if abs(advantage - own.advantage) > 1e-6:
            torch.testing.assert_close(after[advantage], logprobs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["qwen3", "granite"])
def test_a_small_budget_for_logits_changes_nothing_but_memory(
    policy_of: Callable[..., Policy], kind: str
) -> None:
    """The output layer in parts gives the same values, entropies and gradients as at once."""
    results = []
    for logit_bytes in (1 << 28, 7 * 4 * VOCABULARY):
        policy = policy_of(kind, logit_bytes=logit_bytes)
        (row,) = pack(groups(5), 1000, policy.layout)
        assert len(row.sources_N) > 7
        logprobs, entropies = row_logprobs(policy, row)
        assert not entropies.requires_grad
        policy.optimizer.zero_grad()
        (logprobs * torch.arange(len(logprobs))).sum().backward()  # type: ignore[no-untyped-call]
        gradient = torch.cat(
            [p.grad.flatten() for p in policy.parameters.values() if p.grad is not None]
        )
        results.append((logprobs.detach(), entropies, gradient))
    for whole, parts in zip(*results, strict=True):
        torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-5)


def test_the_logits_of_a_part_only_are_held_at_once(policy_of: Callable[..., Policy]) -> None:
    """The output layer never sees more targets than the budget has room for."""
    policy = policy_of("qwen3", logit_bytes=7 * 4 * VOCABULARY)
    (row,) = pack(groups(5), 1000, "shared")
    seen: list[int] = []
    hook = policy.model.get_output_embeddings().register_forward_hook(
        lambda _module, _inputs, output: seen.append(output.shape[-2])
    )
    row_logprobs(policy, row)
    with torch.no_grad():
        row_logprobs(policy, row)
    hook.remove()
    assert max(seen) == 7
    assert sum(seen) == 2 * (len(row.sources_N) + 1)  # one more, for the model's own forward pass


def test_scores_are_single_precision_in_a_half_precision_model(
    policy_of: Callable[..., Policy],
) -> None:
    """Log-softmax in bfloat16 would lose what the ratio is made of."""
    policy = policy_of("qwen3", dtype="bfloat16")
    (row,) = pack(groups(5), 1000, policy.layout)
    assert policy.layout == "shared"
    logprobs, entropies = row_logprobs(policy, row)
    assert logprobs.dtype == entropies.dtype == torch.float32
