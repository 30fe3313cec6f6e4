from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

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
