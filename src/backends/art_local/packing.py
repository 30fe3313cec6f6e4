# ruff: noqa: N806, N815 - shapes stand in the names of tensors
"""Sequences to rows: what one forward pass takes.

Shapes are in the names: B lines, T positions, N trained tokens of the row.

Three layouts give the same loss and gradient, at different cost:

- "shared": one line without padding. Sequences that begin alike, as a group's prompt, have their beginning once;
  each token sees its own sequence only (see `attention.py`).
- "packed": the same, and each sequence has all its tokens.
- "padded": one sequence a line, padded on the right. Any causal model can do it, with no help: a position never
  sees what stands to its right.

Each trained token is predicted at its *source*, the position of the token before it. One source may predict
several targets: the last token of a shared prompt predicts every completion's first token. What follows the last
trained token of a sequence is cut off, and sequences without a trained token are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from art_local.prefix_tree import Segment, build_tree, cut_runs
from art_local.targets import Targets

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from art.adapter_kit.sequences import TrainingSequence

    Ints = np.ndarray[Any, np.dtype[np.int64]]

Layout = Literal["shared", "packed", "padded"]

# Below this, the bookkeeping of one more segment costs more than the tokens that it saves.
MIN_SHARED = 16
_UNBOUNDED = 1 << 62


@dataclass(frozen=True)
class Row:
    """What one forward pass takes, and what its loss needs.

    Attributes:
        input_ids_BT: Token ids, 0 where padded.
        position_ids_BT: The position of each token in its own sequences.
        sources_N: Where each target is predicted, as an index into the flattened B*T positions.
        targets: The trained tokens.
        segments: Which tokens belong together, in depth-first order; empty for the layout "padded".
        num_tokens: Positions that are no padding.
        num_logical_tokens: What the sequences would take one by one.
    """

    input_ids_BT: torch.Tensor
    position_ids_BT: torch.Tensor
    sources_N: torch.Tensor
    targets: Targets
    segments: tuple[Segment, ...]
    num_tokens: int
    num_logical_tokens: int

    def to(self, device: torch.device) -> Row:
        """Return the row on a device."""
        return Row(
            self.input_ids_BT.to(device),
            self.position_ids_BT.to(device),
            self.sources_N.to(device),
            self.targets.to(device),
            self.segments,
            self.num_tokens,
            self.num_logical_tokens,
        )


@dataclass(frozen=True)
class PackStatistics:
    """How well rows are filled.

    Attributes:
        logical_tokens: What the sequences would take one by one, as they were cut.
        physical_tokens: What they take in the rows, without padding.
        capacity_tokens: What the rows have room for.
    """

    logical_tokens: int
    physical_tokens: int
    capacity_tokens: int

    @property
    def efficiency(self) -> float:
        """The part of the rows' room that is used; 1.0 without rows."""
        return self.physical_tokens / self.capacity_tokens if self.capacity_tokens else 1.0

    @classmethod
    def of(cls, rows: Sequence[Row], row_tokens: int) -> PackStatistics:
        """Count rows that were made with room for so many tokens; a longer sequence has a larger one."""
        return cls(
            sum(row.num_logical_tokens for row in rows),
            sum(row.num_tokens for row in rows),
            sum(max(row.input_ids_BT.numel(), row_tokens) for row in rows),
        )


def pack(
    sequences: Sequence[TrainingSequence],
    row_tokens: int,
    layout: Layout,
    *,
    min_shared: int = MIN_SHARED,
    max_targets: int | None = None,
) -> list[Row]:
    """Put a batch into rows, deterministically.

    Args:
        sequences: The whole batch; sequences without a trained token are left out. Their order only decides
            between equal ones.
        row_tokens: Bound on the positions of a row, padding included. A longer sequence gets a row of its own;
            nothing is cut.
        layout: How.
        min_shared: In the layout "shared", a stretch is shared where that saves at least so many tokens.
        max_targets: Bound on the trained tokens of a row; again exceeded only by a single sequence.
    """
    cut = [_Cut.of(sequence) for sequence in sequences if any(sequence.trained)]
    most = _UNBOUNDED if max_targets is None else max_targets
    if layout == "padded":
        cut.sort(key=lambda c: -len(c.input_ids))  # stable: equal lengths keep their order
        return [_pad(chunk) for chunk in _chunks(cut, row_tokens, most)]
    cut.sort(key=lambda c: c.sequence.token_ids[: len(c.input_ids)])
    shared = [0] * len(cut)
    if layout == "shared":
        shared[1:] = [_common(a, b) for a, b in pairwise(cut)]
    return [
        _row([(cut[a:b], shared[a:b]) for a, b in runs], min_shared)
        for runs in _first_fit(cut, shared, row_tokens, most, min_shared)
    ]


@dataclass(frozen=True)
class _Cut:
    """A sequence up to the last token that a target needs."""

    sequence: TrainingSequence
    targets: Ints
    input_ids: Ints

    @classmethod
    def of(cls, sequence: TrainingSequence) -> _Cut:
        targets = np.flatnonzero(np.array(sequence.trained))
        return cls(sequence, targets, np.array(sequence.token_ids[: targets[-1]], dtype=np.int64))


def _common(a: _Cut, b: _Cut) -> int:
    """Return how many first tokens two sequences have in common."""
    shorter = min(len(a.input_ids), len(b.input_ids))
    differs = a.input_ids[:shorter] != b.input_ids[:shorter]
    return int(differs.argmax()) if differs.any() else shorter


def _first_fit(
    cut: list[_Cut], shared: list[int], row_tokens: int, max_targets: int, min_shared: int
) -> list[list[tuple[int, int]]]:
    """Distribute runs of sequences over rows: the largest first, each into the first row with room for it."""
    lengths = [len(c.input_ids) for c in cut]
    weights = [len(c.targets) for c in cut]
    runs = cut_runs(
        lengths,
        shared,
        weights,
        min_shared=min_shared,
        max_tokens=row_tokens,
        max_weight=max_targets,
    )
    sized = [(build_tree(lengths[a:b], shared[a:b], min_shared).num_tokens, a, b) for a, b in runs]
    rows: list[list[tuple[int, int]]] = []
    room: list[tuple[int, int]] = []  # tokens and targets left in each row
    for size, a, b in sorted(sized, key=lambda run: -run[0]):
        weight = sum(weights[a:b])
        for i, (tokens, targets) in enumerate(room):
            if size <= tokens and weight <= targets:
                rows[i].append((a, b))
                room[i] = tokens - size, targets - weight
                break
        else:
            rows.append([(a, b)])
            room.append((row_tokens - size, max_targets - weight))
    return rows


def _row(runs: list[tuple[list[_Cut], list[int]]], min_shared: int) -> Row:
    segments: list[Segment] = []
    input_ids: list[Ints] = []
    sources: list[Ints] = []
    num_tokens = 0
    for cut, shared in runs:
        tree = build_tree([len(c.input_ids) for c in cut], shared, min_shared)
        ids = np.empty(tree.num_tokens, dtype=np.int64)
        for s, c in enumerate(cut):
            index = np.empty(len(c.input_ids), dtype=np.int64)  # where each of its tokens stands
            for segment in tree.path(s):
                stop = segment.position + segment.end - segment.start
                index[segment.position : stop] = np.arange(segment.start, segment.end)
            ids[index] = c.input_ids
            sources.append(index[c.targets - 1] + num_tokens)
        segments += [segment.moved(num_tokens, len(segments)) for segment in tree.segments]
        input_ids.append(ids)
        num_tokens += tree.num_tokens
    positions = [np.arange(s.position, s.position + s.end - s.start) for s in segments]
    cut = [c for run, _ in runs for c in run]
    return Row(
        torch.from_numpy(np.concatenate(input_ids))[None],
        torch.from_numpy(np.concatenate(positions))[None],
        torch.from_numpy(np.concatenate(sources)),
        _targets(cut),
        tuple(segments),
        num_tokens,
        sum(len(c.input_ids) for c in cut),
    )


def _chunks(cut: list[_Cut], row_tokens: int, max_targets: int) -> Iterator[list[_Cut]]:
    chunk: list[_Cut] = []
    num_targets = 0
    for c in cut:
        # The first of a chunk is its longest.
        too_long = chunk and (len(chunk) + 1) * len(chunk[0].input_ids) > row_tokens
        too_many = num_targets + len(c.targets) > max_targets
        if chunk and (too_long or too_many):
            yield chunk
            chunk, num_targets = [], 0
        chunk.append(c)
        num_targets += len(c.targets)
    if chunk:
        yield chunk


def _pad(cut: list[_Cut]) -> Row:
    width = len(cut[0].input_ids)
    input_ids_BT = torch.zeros(len(cut), width, dtype=torch.long)
    for b, c in enumerate(cut):
        input_ids_BT[b, : len(c.input_ids)] = torch.from_numpy(c.input_ids)
    num_tokens = sum(len(c.input_ids) for c in cut)
    return Row(
        input_ids_BT,
        torch.arange(width).expand(len(cut), -1),
        torch.from_numpy(np.concatenate([c.targets - 1 + b * width for b, c in enumerate(cut)])),
        _targets(cut),
        (),
        num_tokens,
        num_tokens,
    )


def _targets(cut: list[_Cut]) -> Targets:
    def chosen(values: list[list[Any]]) -> np.ndarray[Any, Any]:
        return np.concatenate([np.array(v)[c.targets] for v, c in zip(values, cut, strict=True)])

    counts = torch.tensor([len(c.targets) for c in cut])
    return Targets(
        torch.from_numpy(chosen([c.sequence.token_ids for c in cut])),
        torch.from_numpy(chosen([c.sequence.logprobs for c in cut])).float(),
        torch.from_numpy(chosen([c.sequence.temperatures for c in cut])).float(),
        torch.tensor([c.sequence.advantage for c in cut]).repeat_interleave(counts),
        torch.arange(len(cut)).repeat_interleave(counts),
    )
