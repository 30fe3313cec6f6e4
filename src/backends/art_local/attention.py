"""Attention over a row in which several sequences stand one after the other and share their beginnings.

A token sees the tokens before it whose segment's subtree it stands in (see `prefix_tree.py`). No mask of all
positions against all others is ever made:

- On a CPU the row is cut into *blocks*. The queries of one block see the keys of the blocks that it continues,
  all of them, and those of its own part, by a small mask or just causally. A block is one segment, or several that
  stand side by side where one call with a mask is cheaper than many calls.
- On a GPU, flex_attention skips what is masked, tile by tile; the mask is a function of two positions.

transformers models call the function that is registered here by name, and hand down to it what the model was
called with. Without a tree it is plain causal attention.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from art_local.prefix_tree import NO_PARENT, Segment

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

IMPLEMENTATION = "art_tree"

# What one more call costs, in pairs of query and key that could be computed instead (measured on a CPU).
CALL_PAIRS = 1500

_MAX_COMPILATIONS = 128


class UnsupportedAttentionError(Exception):
    """A model asks for a kind of attention that is not implemented over rows."""


class TreeAttention:
    """Attention over a row of segments.

    Args:
        segments: In depth-first order.
        positions_T: The position of each token in its sequences, on the model's device.
        call_pairs: As for `plan_blocks`.
    """

    def __init__(
        self,
        segments: Sequence[Segment],
        positions_T: torch.Tensor,  # noqa: N803 - the shape
        call_pairs: int = CALL_PAIRS,
    ) -> None:
        self._segments = segments
        self._positions = positions_T
        self._block_masks: dict[int | None, Any] = {}
        self._blocks: list[Block] = []
        if positions_T.device.type != "cuda":
            self._blocks = plan_blocks(segments, call_pairs)
            self._lengths = [block.end - block.start for block in self._blocks]
            self._masks: dict[int | None, list[torch.Tensor | None]] = {}

    @classmethod
    def causal(cls, length: int, device: torch.device) -> TreeAttention:
        """Return plain causal attention over sequences of one length."""
        segment = Segment(0, length, 0, NO_PARENT, length)
        return cls([segment], torch.arange(length, device=device))

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float | None,
        window: int | None,
    ) -> torch.Tensor:
        """Return the attention's output, (lines, positions, heads, head size).

        Args:
            query: (lines, heads, positions, head size).
            key: The same with as many heads or fewer, each then serves several of the query's.
            value: As the keys.
            scaling: The products are multiplied by it; by default one over the root of the head size.
            window: A token sees only so many positions, its own included; None is all.
        """
        grouped = query.shape[1] != key.shape[1]
        if query.device.type == "cuda":
            output: torch.Tensor = _compiled_flex_attention()(
                query,
                key,
                value,
                block_mask=self._block_mask(window),
                scale=scaling,
                enable_gqa=grouped,
            )
            return output.transpose(1, 2).contiguous()
        keys, values = (torch.split(x, self._lengths, 2) for x in (key, value))
        outputs = []
        for i, (block, mask, q) in enumerate(
            zip(
                self._blocks,
                self._masks_of(window),
                torch.split(query, self._lengths, 2),
                strict=True,
            )
        ):
            k, v = keys[i], values[i]
            if block.ancestors:
                k = torch.cat([*(keys[a] for a in block.ancestors), k], 2)
                v = torch.cat([*(values[a] for a in block.ancestors), v], 2)
            out = scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=grouped
            )
            outputs.append(out.transpose(1, 2))
        return outputs[0].contiguous() if len(outputs) == 1 else torch.cat(outputs, 1)

    def _masks_of(self, window: int | None) -> list[torch.Tensor | None]:
        if window not in self._masks:
            self._masks[window] = [self._mask(block, window) for block in self._blocks]
        return self._masks[window]

    def _mask(self, block: Block, window: int | None) -> torch.Tensor | None:
        """Return which keys the queries of a block see; None where it is plain causal attention."""
        parts = [*(self._blocks[a] for a in block.ancestors), block]
        positions = self._positions
        keys = torch.cat([positions[part.start : part.end] for part in parts])
        queries = positions[block.start : block.end]
        inside = window is None or int(queries.max() - keys.min()) < window
        if inside and not block.ancestors and len(block.segments) == 1:
            return None
        mask = torch.ones(len(queries), len(keys), dtype=torch.bool, device=positions.device)
        own = mask[:, len(keys) - len(queries) :]
        own.tril_()
        for segment in block.segments:
            # What stands behind its subtree does not see it.
            own[
                segment.subtree_end - block.start :,
                segment.start - block.start : segment.end - block.start,
            ] = False
        if window is not None and not inside:
            mask &= queries[:, None] - keys[None] < window
        return mask

    def _block_mask(self, window: int | None) -> Any:
        if window not in self._block_masks:
            length = len(self._positions)
            self._block_masks[window] = _compiled_create_block_mask()(
                self.mask_function(window), None, None, length, length, self._positions.device
            )
        return self._block_masks[window]

    def mask_function(self, window: int | None) -> Callable[..., torch.Tensor]:
        """Return flex_attention's view of the row: whether the query at one index sees the key at another."""
        positions = self._positions
        sizes = torch.tensor([s.end - s.start for s in self._segments])
        ends = torch.tensor([s.subtree_end for s in self._segments])
        subtree_ends = ends.repeat_interleave(sizes).to(positions.device)

        def visible(
            _batch: torch.Tensor, _head: torch.Tensor, q: torch.Tensor, k: torch.Tensor
        ) -> torch.Tensor:
            return (k <= q) & (q < subtree_ends[k])

        if window is None:
            return visible

        def visible_in_window(
            batch: torch.Tensor, head: torch.Tensor, q: torch.Tensor, k: torch.Tensor
        ) -> torch.Tensor:
            return visible(batch, head, q, k) & (positions[q] - positions[k] < window)

        return visible_in_window


@dataclass(frozen=True)
class Block:
    """Queries that are computed in one call.

    Attributes:
        start: First position in the row.
        end: One past the last.
        ancestors: Blocks before it that all its queries see whole, by number.
        segments: The segments that it is made of.
    """

    start: int
    end: int
    ancestors: tuple[int, ...]
    segments: tuple[Segment, ...]


def plan_blocks(segments: Sequence[Segment], call_pairs: int = CALL_PAIRS) -> list[Block]:
    """Cut a row into blocks, so that the work is small and the calls are few.

    Args:
        segments: Those of the row.
        call_pairs: How many pairs of query and key may be computed for nothing, to save a call.
    """
    planner = _Planner(segments, call_pairs)
    blocks: list[Block] = []
    # Neighbours that may share a block, and the blocks that they continue; no recursion, as trees may be deep.
    waiting: list[tuple[list[int], tuple[int, ...]]]
    waiting = [(run, ()) for run in reversed(planner.runs(NO_PARENT))]
    while waiting:
        run, ancestors = waiting.pop()
        if planner.is_one_block(run):
            inside = planner.subtrees(run)
            blocks.append(Block(inside[0].start, inside[-1].end, ancestors, inside))
            continue
        own = segments[run[0]]
        blocks.append(Block(own.start, own.end, ancestors, (own,)))
        continued = (*ancestors, len(blocks) - 1)
        waiting += [(below, continued) for below in reversed(planner.runs(run[0]))]
    return blocks


class _Planner:
    """What blocks cost, in pairs of query and key."""

    def __init__(self, segments: Sequence[Segment], call_pairs: int) -> None:
        self._segments = segments
        self._call_pairs = call_pairs
        self._children: dict[int, list[int]] = {NO_PARENT: []}
        for i, segment in enumerate(segments):
            self._children[i] = []
            self._children[segment.parent].append(i)
        self._apart = [0] * len(segments)
        for i in reversed(range(len(segments))):  # what continues a segment stands behind it
            self._apart[i] = self._cost_apart(i)

    def runs(self, parent: int) -> list[list[int]]:
        """Put what continues a segment together, as long as one call for all is cheaper than one more call."""
        runs: list[list[int]] = []
        cost = 0
        for child in self._children[parent]:
            alone = self._cost_alone(child)
            if runs and (joined := self._cost_together(runs[-1][0], child)) <= cost + alone:
                runs[-1].append(child)
                cost = joined
            else:
                runs.append([child])
                cost = alone
        return runs

    def is_one_block(self, run: list[int]) -> bool:
        """Tell whether neighbours, with all that continues them, are one block."""
        first, last = run[0], run[-1]
        return len(run) > 1 or self._cost_together(first, last) <= self._apart[first]

    def subtrees(self, run: list[int]) -> tuple[Segment, ...]:
        """Return the segments of neighbours, and of all that continues them."""
        end = self._segments[run[-1]].subtree_end
        behind = bisect_left(self._segments, end, lo=run[0], key=lambda s: s.start)
        return tuple(self._segments[run[0] : behind])

    def _cost_alone(self, index: int) -> int:
        return min(self._cost_together(index, index), self._apart[index])

    def _cost_together(self, first: int, last: int) -> int:
        """Return the cost of the subtrees of neighbours as one block."""
        above = self._segments[first].position
        queries = self._segments[last].subtree_end - self._segments[first].start
        return queries * (above + queries) + self._call_pairs

    def _cost_apart(self, index: int) -> int:
        """Return the cost of a segment as a block of its own, and of all that continues it as it is best."""
        own = self._segments[index]
        above, queries = own.position, own.end - own.start
        # Without ancestors there is no mask, and only the lower half is computed.
        pairs = queries * (above + queries) if above else queries * queries // 2
        below = sum(self._cost_alone(child) for child in self._children[index])
        return pairs + self._call_pairs + below


def tree_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    tree: TreeAttention | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attend as transformers' models ask an attention function to.

    Raises:
        UnsupportedAttentionError: The model wants something else than plain causal attention.
    """
    for name in ("softcap", "s_aux", "position_bias"):
        if options.get(name) is not None:
            raise UnsupportedAttentionError(f"{type(module).__name__} uses {name}")
    if options.get("is_causal") is False:
        raise UnsupportedAttentionError(f"{type(module).__name__} looks ahead")
    if attention_mask is not None or key.shape[2] != query.shape[2]:
        raise UnsupportedAttentionError(
            f"{type(module).__name__} brings a mask or a cache of its own"
        )
    if options.get("dropout"):
        raise UnsupportedAttentionError(f"{type(module).__name__} drops out attention weights")
    if tree is None:
        tree = TreeAttention.causal(query.shape[2], query.device)
    return tree.attend(query, key, value, scaling, sliding_window), None


AttentionInterface.register(IMPLEMENTATION, tree_attention)


@cache
def _compiled_flex_attention() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    # Each kind of call (length, window, with and without gradient) is compiled once. Beyond the limit torch would go
    # on uncompiled, which makes all scores of all positions at once.
    torch._dynamo.config.recompile_limit = _MAX_COMPILATIONS
    return torch.compile(flex_attention)


@cache
def _compiled_create_block_mask() -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    # Compiled, the mask of all positions against all others is folded into tiles as it is made.
    return torch.compile(create_block_mask)
