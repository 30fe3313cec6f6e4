from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from art.errors import ConfigurationError
from art_local.config import LoraSettings, WorkerSettings
from art_local.layout_check import find_layout
from art_local.policy import Policy
from tests.art_local.models import save_model

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.local


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the check said; transformers has warnings of its own."""
    return [r.getMessage() for r in caplog.records if r.name == "art_local.layout_check"]


@pytest.mark.parametrize("kind", ["qwen3", "mistral", "gemma3", "granite"])
@pytest.mark.parametrize("wanted", ["auto", "packed"])
def test_models_of_plain_attention_pack(
    tmp_path: Path, kind: str, wanted: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With grouped heads and sliding windows too; the best layout is taken, or the one that is asked for."""
    policy = Policy(WorkerSettings(str(save_model(tmp_path, kind)), layout=wanted))
    assert policy.layout == ("shared" if wanted == "auto" else wanted)
    assert not warnings(caplog)


@pytest.mark.parametrize(("kind", "why"), [("gemma2", "softcap"), ("mamba", "linear_attention")])
def test_other_models_fall_back_to_padded_rows(
    tmp_path: Path, kind: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning says why; the model keeps the attention that it came with."""
    lora = LoraSettings(target_modules=("q_proj",) if kind == "gemma2" else ("in_proj",))
    policy = Policy(WorkerSettings(str(save_model(tmp_path, kind)), lora=lora, layout="shared"))
    assert policy.layout == "padded"
    (warning,) = warnings(caplog)
    assert why in warning
    assert policy.model.config._attn_implementation != "art_tree"


def test_a_layer_that_mixes_tokens_in_its_own_way_is_noticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where the few tokens of the trial give the same numbers."""
    policy = Policy(WorkerSettings(str(save_model(tmp_path, "qwen3")), layout="padded"))
    attention = policy.model.get_base_model().model.layers[1].self_attn
    attention.forward = lambda hidden_states, **_: (hidden_states, None)
    assert find_layout(policy, "auto") == "padded"
    assert "1 of its 2 layers" in warnings(caplog)[0]


@pytest.mark.parametrize("layout", ["auto", "padded"])
def test_a_soft_cap_of_attention_is_kept(tmp_path: Path, layout: str) -> None:
    """On padded rows too the log probabilities are those of the model as it was made, and not without its cap."""
    change_config(save_model(tmp_path, "gemma2"), attn_logit_softcapping=0.5)
    policy = Policy(WorkerSettings(str(tmp_path), layout=layout))
    ids = torch.arange(12)[None]
    with torch.no_grad():
        got = policy.model(input_ids=ids, use_cache=False).logits
        want, uncapped = (
            AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation=kind)(ids).logits
            for kind in ("eager", "sdpa")
        )
    torch.testing.assert_close(got, want)
    assert (uncapped - want).abs().max() > 0.01


@pytest.mark.parametrize("layout", ["auto", "padded"])
def test_an_adapter_that_the_model_does_not_run_with_is_told(tmp_path: Path, layout: str) -> None:
    """A router that is a linear layer and returns two tensors: the error names the modules."""
    config = AutoConfig.for_model(
        "llama4_text",
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        intermediate_size_mlp=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_local_experts=2,
        pad_token_id=None,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigurationError, match=r"target_modules=.*router"):
        Policy(WorkerSettings(str(tmp_path), layout=layout))
    Policy(WorkerSettings(str(tmp_path), lora=LoraSettings(target_modules=("q_proj",))))


@pytest.mark.parametrize("layout", ["auto", "padded"])
@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 300},
        {
            "rope_type": "longrope",
            "factor": 2.0,
            "original_max_position_embeddings": 300,
            "short_factor": [1.0] * 4,
            "long_factor": [2.0] * 4,
        },
        {"rope_type": "dynamic", "factor": 2.0},
    ],
    ids=["dynamic", "longrope", "dynamic from the model's own limit"],
)
def test_positions_that_depend_on_the_longest_sequence_are_told(
    tmp_path: Path, rope: dict[str, Any], layout: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, with the number of tokens from which on they do."""
    change_config(save_model(tmp_path, "qwen3"), rope_parameters=rope | {"rope_theta": 10_000.0})
    Policy(WorkerSettings(str(tmp_path), layout=layout))
    (warning,) = warnings(caplog)
    assert rope["rope_type"] in warning
    assert f"more than {rope.get('original_max_position_embeddings', 512)} tokens" in warning


def change_config(directory: Path, **changes: Any) -> None:
    """Write other values into a saved model's configuration."""
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | changes))


def test_padded_rows_can_be_asked_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is tried then, and nothing is said."""
    policy = Policy(WorkerSettings(str(save_model(tmp_path, "gemma2")), layout="padded"))
    assert policy.layout == "padded"
    assert not warnings(caplog)


@pytest.mark.parametrize(
    ("kind", "plain"), [("qwen3", True), ("granite", False), ("gemma2", False)]
)
def test_logits_that_are_changed_after_the_output_layer_are_not_split(
    tmp_path: Path, kind: str, plain: bool
) -> None:
    """Soft caps and scaling would be lost."""
    policy = Policy(WorkerSettings(str(save_model(tmp_path, kind)), layout="padded"))
    assert policy.can_split_logits == plain


def test_an_output_layer_in_training_is_not_split(tmp_path: Path) -> None:
    """Its weights need a gradient, which only the whole pass gives."""
    lora = LoraSettings(target_modules=("lm_head",))
    policy = Policy(WorkerSettings(str(save_model(tmp_path, "qwen3")), lora=lora))
    assert not policy.can_split_logits
