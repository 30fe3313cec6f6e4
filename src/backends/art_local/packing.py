# ruff: noqa: N806, N815 - shapes stand in the names of tensors
"""Sequences to micro-batches: right-padded rows under a token budget.

Shapes are in the names: B rows, T positions, N trained tokens of the micro-batch, row after row.

With causal attention a position never sees what stands to its right, so padding on the right needs no mask.
Only positions whose *next* token is trained need logits; the rest of a row is context, and what follows the last
trained token is cut off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from art.adapter_kit.sequences import TrainingSequence


@dataclass(frozen=True)
class MicroBatch:
    """What one forward pass takes, and what its loss needs.

    Attributes:
        input_ids_BT: Token ids, 0 where padded.
        predicts_BT: Whether the position predicts a trained token.
        targets_N: The trained tokens.
        sampled_logprobs_N: Their log probabilities at sampling time, NaN where unknown.
        temperatures_N: Their sampling temperatures.
        advantages_N: The advantages of their sequences.
    """

    input_ids_BT: torch.Tensor
    predicts_BT: torch.Tensor
    targets_N: torch.Tensor
    sampled_logprobs_N: torch.Tensor
    temperatures_N: torch.Tensor
    advantages_N: torch.Tensor

    def to(self, device: torch.device) -> MicroBatch:
        """Return the micro-batch on a device."""
        return MicroBatch(**{name: tensor.to(device) for name, tensor in vars(self).items()})


def micro_batches(
    sequences: Sequence[TrainingSequence], max_tokens: int, max_targets: int | None = None
) -> list[MicroBatch]:
    """Cut a batch into micro-batches, longest sequences first, deterministically.

    Args:
        sequences: The whole batch; sequences without a trained token are left out.
        max_tokens: Bound on rows times longest row. A longer sequence gets a micro-batch of its own.
        max_targets: Bound on the trained tokens, each of which costs one row of logits; again exceeded only by
            a single sequence.
    """
    rows = [_Row.of(s) for s in sequences if any(s.trained)]
    rows.sort(key=lambda row: -len(row.input_ids))  # stable: equal lengths keep their order
    return [_pad(chunk) for chunk in _chunks(rows, max_tokens, max_targets)]


@dataclass(frozen=True)
class _Row:
    """One sequence, with the indices of its trained tokens."""

    sequence: TrainingSequence
    targets: list[int]
    input_ids: list[int]

    @classmethod
    def of(cls, sequence: TrainingSequence) -> _Row:
        targets = [i for i, trained in enumerate(sequence.trained) if trained]
        return cls(sequence, targets, sequence.token_ids[: targets[-1]])


def _chunks(rows: list[_Row], max_tokens: int, max_targets: int | None) -> Iterator[list[_Row]]:
    chunk: list[_Row] = []
    num_targets = 0
    for row in rows:
        # The first row of a chunk is its longest.
        too_long = chunk and (len(chunk) + 1) * len(chunk[0].input_ids) > max_tokens
        too_many = max_targets is not None and num_targets + len(row.targets) > max_targets
        if chunk and (too_long or too_many):
            yield chunk
            chunk, num_targets = [], 0
        chunk.append(row)
        num_targets += len(row.targets)
    if chunk:
        yield chunk


def _pad(rows: list[_Row]) -> MicroBatch:
    input_ids_BT = torch.zeros(len(rows), len(rows[0].input_ids), dtype=torch.long)
    predicts_BT = torch.zeros_like(input_ids_BT, dtype=torch.bool)
    for b, row in enumerate(rows):
        input_ids_BT[b, : len(row.input_ids)] = torch.tensor(row.input_ids)
        predicts_BT[b, torch.tensor(row.targets) - 1] = True
    return MicroBatch(
        input_ids_BT,
        predicts_BT,
        torch.tensor([r.sequence.token_ids[i] for r in rows for i in r.targets]),
        torch.tensor([r.sequence.logprobs[i] for r in rows for i in r.targets]),
        torch.tensor([r.sequence.temperatures[i] for r in rows for i in r.targets]),
        torch.tensor([r.sequence.advantage for r in rows for _ in r.targets]),
    )
