# ruff: noqa: N815 - shapes stand in the names of tensors
"""What is known of the tokens that a row trains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Targets:
    """The N trained tokens of a row, sequence after sequence.

    Attributes:
        token_ids_N: The tokens.
        logprobs_N: Their log probabilities at sampling time, NaN where unknown.
        temperatures_N: Their sampling temperatures.
        advantages_N: The advantages of their sequences.
        sequence_N: Which sequence of the row each belongs to, from 0, never falling.
    """

    token_ids_N: torch.Tensor
    logprobs_N: torch.Tensor
    temperatures_N: torch.Tensor
    advantages_N: torch.Tensor
    sequence_N: torch.Tensor

    def to(self, device: torch.device) -> Targets:
        """Return them on a device."""
        return Targets(**{name: tensor.to(device) for name, tensor in vars(self).items()})
