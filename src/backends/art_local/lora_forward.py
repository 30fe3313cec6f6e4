"""A cheaper forward pass of a LoRA layer, with the same result as peft's.

peft multiplies the adapter's whole output by its scale and then adds it to the layer's: two passes over a tensor as wide as
the layer. Here the scale goes to the r numbers between A and B, and the sum is part of the product with B. It takes a tenth
off a training step on a CPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from peft.tuners.lora import Linear
from torch.nn.functional import linear

if TYPE_CHECKING:
    from collections.abc import Callable


def use_cheap_forward(model: torch.nn.Module, adapter: str) -> None:
    """Give every plain LoRA layer of a model the forward pass below; others keep peft's.

    Args:
        model: With one adapter, without dropout.
        adapter: Its name.
    """
    for module in model.modules():
        # Exactly this class: what derives from it computes otherwise.
        if type(module) is Linear and _is_plain(module, adapter):
            module.forward = _forward(module, adapter)


def _is_plain(module: Any, adapter: str) -> bool:
    return (
        type(module.base_layer) is torch.nn.Linear
        and isinstance(module.lora_dropout[adapter], torch.nn.Identity)
        and module.lora_B[adapter].bias is None
        and adapter not in module.lora_variant
    )


def _forward(module: Any, adapter: str) -> Callable[[torch.Tensor], torch.Tensor]:
    lora_a, lora_b, scaling = (
        module.lora_A[adapter],
        module.lora_B[adapter],
        module.scaling[adapter],
    )

    def forward(x: torch.Tensor) -> torch.Tensor:
        base: torch.Tensor = module.base_layer(x)
        if module.disable_adapters:
            return base
        # Where autocast is on it casts A; a cast of x would be kept for the backward pass by every layer of its own.
        if not torch.is_autocast_enabled(x.device.type):
            x = x.to(lora_a.weight.dtype)
        between = linear(x, lora_a.weight) * scaling
        # Contiguous, so that its gradient is the product r x tokens x out; the transposed one is several times slower.
        b_transposed = lora_b.weight.t().contiguous().to(base.dtype)
        total = torch.addmm(
            base.flatten(0, -2), between.flatten(0, -2).to(base.dtype), b_transposed
        )
        return total.view_as(base)

    return forward
