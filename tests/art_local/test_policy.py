from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from art.errors import ConfigurationError, TrainingError
from art_local import checkpoint_files as files
from art_local.config import LoraSettings, WorkerSettings
from art_local.policy import Policy

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.local

PROMPT = torch.tensor([[1, 2, 3, 4, 5]])


@pytest.fixture
def policy(tiny_model_dir: Path) -> Policy:
    """A fresh policy."""
    torch.set_num_threads(1)
    return Policy(WorkerSettings(str(tiny_model_dir)))


def take_step(policy: Policy, sign: float = 1.0) -> None:
    """One optimizer step on any gradient."""
    policy.model(input_ids=PROMPT).logits.square().sum().mul(sign).backward()
    for group in policy.optimizer.param_groups:
        group["lr"] = 0.01
    policy.optimizer.step()
    policy.optimizer.zero_grad()


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    """What the model says to a fixed prompt."""
    output: torch.Tensor = model(input_ids=PROMPT).logits
    return output


def test_a_fresh_adapter_equals_the_base_model(policy: Policy, tiny_model_dir: Path) -> None:
    """B is zero, so step 0 answers as the base model does."""
    assert torch.equal(
        logits(policy.model), logits(AutoModelForCausalLM.from_pretrained(tiny_model_dir))
    )


def test_peft_loads_a_saved_checkpoint(
    policy: Policy, tiny_model_dir: Path, tmp_path: Path
) -> None:
    """Any tool that reads PEFT adapters gets the same logits."""
    take_step(policy)
    policy.save(tmp_path, 1)
    base = AutoModelForCausalLM.from_pretrained(tiny_model_dir)
    loaded = PeftModel.from_pretrained(base, tmp_path)
    torch.testing.assert_close(logits(loaded), logits(policy.model), rtol=0, atol=1e-5)
    with loaded.disable_adapter():
        assert not torch.allclose(logits(loaded), logits(policy.model), rtol=0, atol=1e-3)


def test_a_loaded_policy_continues_as_if_it_had_never_stopped(
    policy: Policy, tiny_model_dir: Path, tmp_path: Path
) -> None:
    """Weights and the optimizer's averages are restored to the bit."""
    take_step(policy)
    policy.save(tmp_path, 1)
    take_step(policy, sign=-1.0)
    resumed = Policy(WorkerSettings(str(tiny_model_dir)))
    resumed.load(tmp_path)
    take_step(resumed, sign=-1.0)
    for name, parameter in policy.parameters.items():
        assert torch.equal(parameter, resumed.parameters[name]), name


def test_loading_forgets_everything_else(policy: Policy, tmp_path: Path) -> None:
    """After a load neither weights nor averages of what came before remain."""
    policy.save(tmp_path, 0)
    take_step(policy)
    policy.load(tmp_path)
    fresh = {name: p.detach().clone() for name, p in policy.parameters.items()}
    take_step(policy)
    first = {name: p.detach().clone() for name, p in policy.parameters.items()}
    policy.reset()
    assert all(torch.equal(p, fresh[n]) for n, p in policy.parameters.items())
    take_step(policy)
    assert all(torch.equal(p, first[n]) for n, p in policy.parameters.items())


def test_the_seed_decides_the_fresh_adapter(policy: Policy, tiny_model_dir: Path) -> None:
    """Same seed, same weights; another seed, other weights."""
    same = Policy(WorkerSettings(str(tiny_model_dir)))
    other = Policy(WorkerSettings(str(tiny_model_dir), seed=1))
    name = next(name for name in policy.parameters if "lora_A" in name)
    assert torch.equal(policy.parameters[name], same.parameters[name])
    assert not torch.equal(policy.parameters[name], other.parameters[name])


def test_the_state_file_tells_what_the_checkpoint_is(
    policy: Policy, tiny_model_dir: Path, tmp_path: Path
) -> None:
    """Step, base model, adapter and versions are on record; the adapter is single precision."""
    take_step(policy)
    policy.save(tmp_path, 12)
    state = json.loads((tmp_path / files.TRAINER_STATE).read_text())
    assert state["step"] == 12
    assert state["optimizer_steps"] == 1
    assert state["base_model"] == str(tiny_model_dir)
    assert state["lora"] == {"r": 8, "alpha": 16, "target_modules": "all-linear"}
    assert set(state["versions"]) == {"torch", "transformers", "peft"}
    weights = load_file(tmp_path / files.ADAPTER_WEIGHTS)
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}


def test_a_checkpoint_without_optimizer_state_can_be_trained(
    policy: Policy, tmp_path: Path
) -> None:
    """An adapter of another tool starts with a new optimizer."""
    take_step(policy)
    policy.save(tmp_path, 1)
    (tmp_path / files.OPTIMIZER_STATE).unlink()
    (tmp_path / files.TRAINER_STATE).unlink()
    policy.load(tmp_path)
    assert not policy.optimizer.state
    take_step(policy)


def test_a_weight_without_a_gradient_keeps_no_moments_and_each_keeps_its_own_steps(
    policy: Policy, tiny_model_dir: Path, tmp_path: Path
) -> None:
    """An expert that no token came to goes on as what it is, and one that was left out once corrects its own bias."""
    never, once, *_ = policy.parameters.values()
    take_step(policy)
    del policy.optimizer.state[never]
    once.requires_grad_(False)
    take_step(policy)
    once.requires_grad_(True)
    del policy.optimizer.state[never]
    policy.save(tmp_path, 2)

    resumed = Policy(WorkerSettings(str(tiny_model_dir)))
    resumed.load(tmp_path)
    resumed_never, resumed_once, *others = resumed.parameters.values()
    assert resumed_never not in resumed.optimizer.state
    steps = [int(resumed.optimizer.state[p]["step"]) for p in (resumed_once, *others)]
    assert steps == [1, *[2] * len(others)]
    for one in (policy, resumed):
        take_step(one, sign=-1.0)
    for name, parameter in policy.parameters.items():
        assert torch.equal(parameter, resumed.parameters[name]), name


def test_an_older_checkpoint_with_one_number_of_steps_is_loaded(
    policy: Policy, tmp_path: Path
) -> None:
    """It counts for every weight, as it did."""
    take_step(policy)
    policy.save(tmp_path, 1)
    saved = load_file(tmp_path / files.OPTIMIZER_STATE)
    older = {name: tensor for name, tensor in saved.items() if not name.endswith(".step")}
    assert len(older) < len(saved)
    save_file(older, tmp_path / files.OPTIMIZER_STATE)
    state = json.loads((tmp_path / files.TRAINER_STATE).read_text())
    (tmp_path / files.TRAINER_STATE).write_text(json.dumps(state | {"optimizer_steps": 7}))
    policy.load(tmp_path)
    steps = [int(policy.optimizer.state[p]["step"]) for p in policy.parameters.values()]
    assert steps == [7] * len(steps)


@pytest.mark.parametrize(
    "kind",
    [
        {"use_rslora": True},
        {"use_dora": True},
        {"alpha_pattern": {"q_proj": 64}},
        {"rank_pattern": {"q_proj": 8}},
    ],
    ids=str,
)
def test_an_adapter_of_another_kind_is_refused(
    policy: Policy, tmp_path: Path, kind: dict[str, Any]
) -> None:
    """Its weights would fit, and be computed otherwise than they were trained."""
    policy.save(tmp_path, 1)
    config = json.loads((tmp_path / files.ADAPTER_CONFIG).read_text())
    (tmp_path / files.ADAPTER_CONFIG).write_text(json.dumps(config | kind))
    with pytest.raises(TrainingError, match=f"{tmp_path} has {next(iter(kind))}="):
        policy.load(tmp_path)


def test_c148_a_weight_that_is_not_finite_is_neither_saved_nor_loaded(
    policy: Policy, tmp_path: Path
) -> None:
    """The error names the tensor."""
    policy.save(tmp_path, 1)
    weights = load_file(tmp_path / files.ADAPTER_WEIGHTS)
    name = next(iter(weights))
    weights[name][0, 0] = float("nan")
    save_file(weights, tmp_path / files.ADAPTER_WEIGHTS)
    with pytest.raises(TrainingError, match=name):
        policy.load(tmp_path)
    name, parameter = next(iter(policy.parameters.items()))
    with torch.no_grad():
        parameter[0, 0] = float("inf")
    (tmp_path / "2").mkdir()
    with pytest.raises(TrainingError, match=name):
        policy.save(tmp_path / "2", 2)
    assert list((tmp_path / "2").iterdir()) == []


@pytest.mark.parametrize("name", [files.ADAPTER_WEIGHTS, files.ADAPTER_CONFIG])
def test_a_checkpoint_that_is_not_whole_is_told_by_its_path(
    policy: Policy, tmp_path: Path, name: str
) -> None:
    """The message names the directory and the file."""
    policy.save(tmp_path, 1)
    (tmp_path / name).unlink()
    with pytest.raises(TrainingError, match=f"{tmp_path}.*{name}"):
        policy.load(tmp_path)


@pytest.mark.parametrize(
    "lora",
    [LoraSettings(r=4), LoraSettings(alpha=8), LoraSettings(target_modules=("q_proj",))],
)
def test_an_adapter_of_another_shape_is_refused(
    policy: Policy, tiny_model_dir: Path, tmp_path: Path, lora: LoraSettings
) -> None:
    """Rank, alpha and modules must be those of the checkpoint."""
    Policy(WorkerSettings(str(tiny_model_dir), lora=lora)).save(tmp_path, 1)
    with pytest.raises(TrainingError, match=r"is configured with|target_modules"):
        policy.load(tmp_path)


def test_weights_of_another_size_are_refused(policy: Policy, tmp_path: Path) -> None:
    """The adapter of a wider or narrower base model is not squeezed in."""
    policy.save(tmp_path, 1)
    weights = load_file(tmp_path / files.ADAPTER_WEIGHTS)
    name = next(iter(weights))
    weights[name] = weights[name][:, :1].contiguous()
    save_file(weights, tmp_path / files.ADAPTER_WEIGHTS)
    with pytest.raises(TrainingError, match=f"{name} .*another shape"):
        policy.load(tmp_path)


def test_a_base_model_that_does_not_exist_is_named() -> None:
    """A wrong path is not looked up on a hub."""
    with pytest.raises(ConfigurationError, match="/no/such/model is not a model directory"):
        Policy(WorkerSettings("/no/such/model"))


@pytest.mark.parametrize("damage", ["no model", "cut short", "another shape"])
def test_a_damaged_base_model_is_named(tiny_model_dir: Path, tmp_path: Path, damage: str) -> None:
    """Whatever the loaders raise, the error is one of configuration, names the directory and keeps their words."""
    broken = tmp_path / "broken"
    shutil.copytree(tiny_model_dir, broken)
    weights, config = broken / "model.safetensors", broken / "config.json"
    if damage == "no model":
        weights.unlink()
    elif damage == "cut short":
        weights.write_bytes(weights.read_bytes()[:-100])
    else:
        text = config.read_text()
        config.write_text(text.replace('"hidden_size": 64', '"hidden_size": 32'))
        assert config.read_text() != text
    with pytest.raises(ConfigurationError, match=f"'{broken}' could not be loaded: "):
        Policy(WorkerSettings(str(broken)))


def test_modules_that_the_base_model_lacks_are_told(tiny_model_dir: Path) -> None:
    """A misspelt target module is a configuration error."""
    settings = WorkerSettings(str(tiny_model_dir), lora=LoraSettings(target_modules=("nope",)))
    with pytest.raises(ConfigurationError, match="nope"):
        Policy(settings)


def test_a_policy_leaves_its_device_as_a_whole(policy: Policy) -> None:
    """The optimizer's averages go with the model's weights, or the memory would not be free."""
    take_step(policy)
    policy.to(torch.device("meta"))  # the one other device that there is everywhere
    kinds = {p.device.type for p in policy.model.parameters()}
    moments = {
        moments[name].device.type
        for moments in policy.optimizer.state.values()
        for name in ("exp_avg", "exp_avg_sq")
    }
    assert kinds == moments == {"meta"}


def test_settings_bound_rows_and_logits(tiny_model_dir: Path) -> None:
    """The bound on logits is turned into targets of this vocabulary."""
    policy = Policy(
        WorkerSettings(
            str(tiny_model_dir), micro_batch_tokens=77, logit_bytes=4000, layout="padded"
        )
    )
    assert policy.row_tokens == 77
    assert policy.max_targets == 4000 // (4 * policy.vocabulary_size)
    assert policy.layout == "padded"
