from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from art_local.lora_forward import use_cheap_forward

pytestmark = pytest.mark.local

INPUT_IDS = torch.arange(24).reshape(2, 12)


def lora_model(model_dir: Path, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    torch.manual_seed(3)
    base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=dtype)
    config = LoraConfig(
        r=4, lora_alpha=12, target_modules="all-linear", init_lora_weights=False, **options
    )
    return get_peft_model(base, config).eval()


def logits_and_gradients(model: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    logits: torch.Tensor = model(input_ids=INPUT_IDS, use_cache=False).logits
    model.zero_grad()
    logits.float().pow(2).mean().backward()  # type: ignore[no-untyped-call]
    return logits.detach(), {
        name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None
    }


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-1)], ids=str
)
def test_the_result_and_every_gradient_are_those_of_peft(
    tiny_model_dir: Path, dtype: torch.dtype, tolerance: float
) -> None:
    """What is cheaper is the same, also, but for rounding, with the base model in half precision."""
    model = lora_model(tiny_model_dir, dtype)
    logits, gradients = logits_and_gradients(model)
    use_cheap_forward(model, "default")
    cheap_logits, cheap_gradients = logits_and_gradients(model)

    assert cheap_logits.dtype == logits.dtype
    assert (cheap_logits - logits).norm() <= tolerance * logits.norm()
    assert cheap_gradients.keys() == gradients.keys() != set()
    for name, gradient in gradients.items():
        assert (cheap_gradients[name] - gradient).norm() <= tolerance * gradient.norm(), name


def test_a_disabled_adapter_leaves_the_base_model(tiny_model_dir: Path) -> None:
    """The base model is to be had from the same model, as a KL term wants it."""
    model = lora_model(tiny_model_dir)
    use_cheap_forward(model, "default")
    expected = AutoModelForCausalLM.from_pretrained(tiny_model_dir)(INPUT_IDS).logits
    with model.disable_adapter():
        assert torch.equal(model(input_ids=INPUT_IDS).logits, expected)
    assert not torch.allclose(model(input_ids=INPUT_IDS).logits, expected)


class TwiceAsMuch(torch.nn.Linear):
    """A linear layer that computes something else."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return twice as much."""
        return 2 * super().forward(x)


def test_a_base_layer_of_another_class_keeps_pefts_forward(tiny_model_dir: Path) -> None:
    """A class that derives from the linear layer may return anything."""
    base = AutoModelForCausalLM.from_pretrained(tiny_model_dir)
    for layer in base.model.layers:
        layer.mlp.up_proj = TwiceAsMuch(64, 128, bias=False)
    model = get_peft_model(base, LoraConfig(r=4, target_modules=["up_proj", "down_proj"]))
    use_cheap_forward(model, "default")
    mlp = model.get_base_model().model.layers[0].mlp
    assert "forward" not in vars(mlp.up_proj)
    assert "forward" in vars(mlp.down_proj)


@pytest.mark.parametrize("options", [{"lora_dropout": 0.5}, {"use_dora": True}])
def test_other_kinds_of_layers_keep_their_own_forward(
    tiny_model_dir: Path, options: dict[str, Any]
) -> None:
    """A layer that computes more than the plain product is left alone."""
    model = lora_model(tiny_model_dir, **options)
    use_cheap_forward(model, "default")
    assert not any("forward" in vars(module) for module in model.modules())
