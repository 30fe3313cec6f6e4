# ruff: noqa: N806 - shapes stand in the names of tensors
from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from art.errors import TrainingError
from art_local.config import LoraSettings, WorkerSettings
from art_local.distributed import World
from art_local.policy import Policy
from art_local.reference import reference_logprobs
from art_local.train_options import TrainOptions
from tests.art_local.models import save_model

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.local

T = TypeVar("T")

Row = list[int]  # here a row is the tokens of one sequence, all trained but the first
ROWS: list[Row] = [[1, 2, 3, 4], [5, 6], [7, 8, 9]]
COUNTED = [(row, True) for row in ROWS]


@pytest.fixture(scope="module")
def warm_policy(tiny_model_dir: Path) -> Policy:
    """One policy for the module, whose adapters have the shape of the fixture's."""
    torch.set_num_threads(1)
    return Policy(WorkerSettings(str(tiny_model_dir), lora=LoraSettings(r=4, alpha=16)))


@pytest.fixture
def policy(warm_policy: Policy) -> Policy:
    """The policy with an adapter that does something: B is not zero."""
    warm_policy.reset()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in warm_policy.parameters.values():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return warm_policy


def logprobs_under(model: Any, row: Row) -> torch.Tensor:
    """Log probabilities of a row's tokens."""
    ids = torch.tensor([row])
    logits: torch.Tensor = model(input_ids=ids).logits[0, :-1]
    return logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]


def scorer(policy: Policy) -> Callable[[Row], tuple[torch.Tensor, torch.Tensor]]:
    """The forward pass of a row."""

    def score(row: Row) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs_N = logprobs_under(policy.model, row)
        return logprobs_N, torch.zeros_like(logprobs_N)

    return score


def weights(policy: Policy) -> dict[str, torch.Tensor]:
    """A copy of the adapter."""
    return {name: p.detach().clone() for name, p in policy.parameters.items()}


def assert_untouched(policy: Policy, before: dict[str, torch.Tensor]) -> None:
    """The very weights, still to be trained."""
    assert all(torch.equal(p, before[name]) for name, p in policy.parameters.items())
    assert all(p.requires_grad for p in policy.parameters.values())
    assert all(p.requires_grad == (name in before) for name, p in policy.model.named_parameters())


def plain_model(policy: Policy) -> Any:
    """The base model, loaded by transformers alone."""
    base = policy.model.peft_config["default"].base_model_name_or_path
    return AutoModelForCausalLM.from_pretrained(base).eval()


@torch.no_grad()
@pytest.mark.parametrize("options", [TrainOptions(kl_penalty_coef=0.1), TrainOptions(beta=0.1)])
def test_without_a_name_the_reference_is_the_base_model(
    policy: Policy, options: TrainOptions
) -> None:
    """The log probabilities are those that the model gives without any adapter."""
    before = weights(policy)
    references = reference_logprobs(COUNTED, options, scorer(policy), policy, World())
    base = plain_model(policy)
    for row, reference in zip(ROWS, references, strict=True):
        assert reference is not None
        torch.testing.assert_close(reference.logprobs_N, logprobs_under(base, row))
        now = logprobs_under(policy.model, row)
        assert (reference.logprobs_N - now).abs().max() > 1e-3
    assert_untouched(policy, before)


@torch.no_grad()
def test_the_reference_may_be_a_checkpoint_of_any_tool(
    policy: Policy, tiny_adapter_dir: Callable[..., Path]
) -> None:
    """The log probabilities are those that peft gives with the adapter, and the policy keeps its own."""
    adapter = tiny_adapter_dir(seed=3)
    before = weights(policy)
    options = TrainOptions(kl_penalty_coef=0.1, kl_ref_adapter_path=str(adapter))
    references = reference_logprobs(COUNTED, options, scorer(policy), policy, World())
    model = PeftModel.from_pretrained(plain_model(policy), adapter).eval()
    for row, reference in zip(ROWS, references, strict=True):
        assert reference is not None
        torch.testing.assert_close(reference.logprobs_N, logprobs_under(model, row))
    assert_untouched(policy, before)


@torch.no_grad()
def test_an_adapter_of_the_embeddings_is_a_reference_too(tmp_path: Path) -> None:
    """Peft names its weights in another way than those of other modules."""
    lora = LoraSettings(r=4, alpha=16, target_modules=("embed_tokens", "q_proj"))
    policy = Policy(WorkerSettings(str(save_model(tmp_path / "model", "qwen3")), lora=lora))
    for parameter in policy.parameters.values():
        parameter.normal_(std=0.1)
    policy.save(tmp_path, 1)
    saved = [logprobs_under(policy.model, row) for row in ROWS]
    policy.reset()
    options = TrainOptions(kl_penalty_coef=0.1, kl_ref_adapter_path=str(tmp_path))
    references = reference_logprobs(COUNTED, options, scorer(policy), policy, World())
    for want, row, reference in zip(saved, ROWS, references, strict=True):
        assert reference is not None
        torch.testing.assert_close(reference.logprobs_N, want)
        assert not torch.allclose(logprobs_under(policy.model, row), want)


def test_an_own_checkpoint_is_a_reference_without_distance(policy: Policy, tmp_path: Path) -> None:
    """Against the weights that it has, a policy has a KL divergence of exactly 0, and no graph is held for it."""
    policy.save(tmp_path, 1)
    options = TrainOptions(kl_penalty_coef=0.1, kl_ref_adapter_path=str(tmp_path))
    for reference in reference_logprobs(COUNTED, options, scorer(policy), policy, World()):
        assert reference is not None
        assert reference.mean_kl == 0.0
        assert not reference.logprobs_N.requires_grad


def test_without_a_kl_term_nothing_is_run(policy: Policy) -> None:
    """There is no reference, and no forward pass is spent on one."""

    def refuse(_row: Row) -> tuple[torch.Tensor, torch.Tensor]:
        raise AssertionError("a forward pass")

    assert reference_logprobs(COUNTED, TrainOptions(), refuse, policy, World()) == [None] * 3


def test_a_step_is_never_taken_for_the_base_model(policy: Policy) -> None:
    """Where nobody has looked up its directory, that is an error."""
    options = TrainOptions(kl_penalty_coef=0.1, kl_penalty_reference_step=3)
    with pytest.raises(TrainingError, match="kl_penalty_reference_step=3"):
        reference_logprobs(COUNTED, options, scorer(policy), policy, World())


class TwoProcesses(World):
    """This process and another, which found a KL divergence of 3 in 4 tokens."""

    size = 2

    def gather(self, value: T) -> list[Any]:
        """Return both values."""
        return [value, (3.0, 4)]


@torch.no_grad()
def test_the_mean_is_that_of_all_processes_and_counts_no_row_twice(policy: Policy) -> None:
    """A row that fills up the others' number is run but not counted."""
    options = TrainOptions(kl_penalty_coef=0.1)
    base = plain_model(policy)
    kls = [
        (logprobs_under(policy.model, row) - logprobs_under(base, row)).sum().item() for row in ROWS
    ]
    rows = [(ROWS[0], True), (ROWS[1], True), (ROWS[2], False)]
    for world, kl, count in (
        (World(), kls[0] + kls[1], 4),
        (TwoProcesses(), kls[0] + kls[1] + 3.0, 8),
    ):
        references = reference_logprobs(rows, options, scorer(policy), policy, world)
        assert len(references) == 3
        for reference in references:
            assert reference is not None
            assert reference.mean_kl == pytest.approx(kl / count, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("with_adapter", [False, True])
def test_the_weights_come_back_also_after_an_error(
    policy: Policy, tiny_adapter_dir: Callable[..., Path], with_adapter: bool
) -> None:
    """A cancelled pass leaves the policy as it was."""
    before = weights(policy)
    want = logprobs_under(policy.model, ROWS[0])
    seen: list[torch.Tensor] = []

    def cancelled_at_the_second(row: Row) -> tuple[torch.Tensor, torch.Tensor]:
        if seen:
            raise RuntimeError("cancelled")
        seen.append(logprobs_under(policy.model, row))
        return seen[0], seen[0]

    adapter = str(tiny_adapter_dir(seed=3)) if with_adapter else None
    options = TrainOptions(kl_penalty_coef=0.1, kl_ref_adapter_path=adapter)
    with pytest.raises(RuntimeError, match="cancelled"):
        reference_logprobs(COUNTED, options, cancelled_at_the_second, policy, World())
    assert not torch.equal(seen[0], want)
    assert_untouched(policy, before)
    assert torch.equal(logprobs_under(policy.model, ROWS[0]), want)


def _rename(directory: Path) -> None:
    saved = load_file(directory / "adapter_model.safetensors")
    saved["another.lora_A.weight"] = saved.pop(min(saved))
    save_file(saved, directory / "adapter_model.safetensors")


def _add(directory: Path) -> None:
    saved = load_file(directory / "adapter_model.safetensors")
    save_file(saved | {"more": torch.zeros(1)}, directory / "adapter_model.safetensors")


def _set_alpha(directory: Path) -> None:
    config = json.loads((directory / "adapter_config.json").read_text())
    (directory / "adapter_config.json").write_text(json.dumps(config | {"lora_alpha": 5}))


def _truncate(directory: Path) -> None:
    (directory / "adapter_model.safetensors").write_bytes(b"\x01")


def _spoil_a_number(directory: Path) -> None:
    saved = load_file(directory / "adapter_model.safetensors")
    saved[min(saved)][0, 0] = torch.nan
    save_file(saved, directory / "adapter_model.safetensors")


def _set_pattern(directory: Path) -> None:
    config = json.loads((directory / "adapter_config.json").read_text())
    config["alpha_pattern"] = {"q_proj": 64}
    (directory / "adapter_config.json").write_text(json.dumps(config))


def _remove_config(directory: Path) -> None:
    (directory / "adapter_config.json").unlink()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_rename, "does not fit"),
        (_add, "does not fit the model: more"),
        (_set_alpha, "lora_alpha=5"),
        (_truncate, "cannot be read"),
        (_remove_config, "has no adapter_config.json"),
        (_spoil_a_number, "is not finite"),
        (_set_pattern, "alpha_pattern"),
    ],
)
def test_a_reference_that_does_not_fit_is_refused_and_named(
    policy: Policy, tmp_path: Path, spoil: Callable[[Path], None], message: str
) -> None:
    """Half an adapter is never taken for the reference, and the policy stays what it is."""
    before = weights(policy)
    policy.save(tmp_path, 1)
    spoil(tmp_path)
    options = TrainOptions(kl_penalty_coef=0.1, kl_ref_adapter_path=str(tmp_path))
    with pytest.raises(TrainingError, match=message) as error:
        reference_logprobs(COUNTED, options, scorer(policy), policy, World())
    assert str(tmp_path) in str(error.value)
    assert_untouched(policy, before)
