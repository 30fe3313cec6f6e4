"""Sequences that begin alike, as a tree: what they share is there once. Plain numbers, no tensors.

The sequences are sorted, so that those which begin alike are neighbours, and all that matters of their tokens is
how many of them each has in common with the one before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

NO_PARENT = -1


@dataclass(frozen=True)
class Segment:
    """A stretch of tokens of a row that one or more sequences have in common.

    Segments stand in depth-first order: what continues one follows it without a gap. A token therefore sees the
    tokens before it whose segment's `subtree_end` it does not reach, and no others.

    Attributes:
        start: Index of its first token in the row.
        end: One past its last token.
        position: Position of its first token in its sequences.
        parent: Index of the segment that it continues, `NO_PARENT` where a sequence begins.
        subtree_end: One past the last token of everything that continues it.
    """

    start: int
    end: int
    position: int
    parent: int
    subtree_end: int

    def moved(self, tokens: int, segments: int) -> Segment:
        """Return it as it is behind others in a row."""
        parent = self.parent if self.parent == NO_PARENT else self.parent + segments
        return Segment(
            self.start + tokens, self.end + tokens, self.position, parent, self.subtree_end + tokens
        )


@dataclass(frozen=True)
class Tree:
    """A stretch of the sorted sequences, sharing what is worth sharing; several trees where they do not.

    Attributes:
        segments: In depth-first order.
        leaves: For each sequence, the segment that it ends with.
        roots: For each sequence, the segment that it begins with.
    """

    segments: list[Segment]
    leaves: list[int]
    roots: list[int]

    @property
    def num_tokens(self) -> int:
        """Tokens that the tree takes."""
        return self.segments[-1].end

    def path(self, sequence: int) -> list[Segment]:
        """Return the segments that make up a sequence, first to last."""
        path = []
        index = self.leaves[sequence]
        while index != NO_PARENT:
            path.append(self.segments[index])
            index = self.segments[index].parent
        return path[::-1]


def build_tree(lengths: Sequence[int], shared: Sequence[int], min_shared: int) -> Tree:
    """Build the tree of a stretch of sorted sequences.

    Args:
        lengths: Their tokens, at least one each.
        shared: How many tokens each has in common with the one before it; the first is not looked at.
        min_shared: A segment is shared where that saves at least so many tokens; else each has its own.
    """
    spans: list[tuple[int, int, int]] = []  # length, position, parent
    leaves = [NO_PARENT] * len(lengths)
    roots = [NO_PARENT] * len(lengths)
    # Runs of sequences that have everything up to `depth` in common, and hang it under `parent`.
    waiting = [(0, len(lengths), 0, NO_PARENT, NO_PARENT)]
    while waiting:
        first, last, depth, parent, root = waiting.pop()
        alone = last - first == 1
        common = lengths[first] if alone else min(shared[first + 1 : last])
        if common > depth and (alone or (last - first - 1) * (common - depth) >= min_shared):
            spans.append((common - depth, depth, parent))
            parent, depth = len(spans) - 1, common
            root = parent if root == NO_PARENT else root
        if alone:
            leaves[first], roots[first] = parent, root
            continue
        cuts = [first, *(i for i in range(first + 1, last) if shared[i] == common), last]
        waiting += [(a, b, depth, parent, root) for a, b in reversed(list(pairwise(cuts)))]
    return Tree(_placed(spans), leaves, roots)


def _placed(spans: list[tuple[int, int, int]]) -> list[Segment]:
    ends, end = [], 0
    for length, _, _ in spans:
        end += length
        ends.append(end)
    subtree_ends = ends.copy()
    for i in reversed(range(len(spans))):
        parent = spans[i][2]
        if parent != NO_PARENT:
            subtree_ends[parent] = max(subtree_ends[parent], subtree_ends[i])
    return [
        Segment(ends[i] - length, ends[i], position, parent, subtree_ends[i])
        for i, (length, position, parent) in enumerate(spans)
    ]


def cut_runs(
    lengths: Sequence[int],
    shared: Sequence[int],
    weights: Sequence[int],
    *,
    min_shared: int,
    max_tokens: int,
    max_weight: int,
) -> Iterator[tuple[int, int]]:
    """Cut the sorted sequences into runs that belong together and fit into a row.

    A run is a whole tree where that fits. A larger tree is cut, each part with the shared beginning, where the
    least has to be repeated. A single sequence may be larger than a row.

    Args:
        lengths: As for `build_tree`.
        shared: As for `build_tree`.
        weights: What else of each sequence is bounded.
        min_shared: As for `build_tree`.
        max_tokens: Bound on the tokens of a tree.
        max_weight: Bound on the weights of its sequences.

    Yields:
        First sequence, and one past the last.
    """
    if not lengths:
        return
    roots = build_tree(lengths, shared, min_shared).roots
    ends = [i for i in range(1, len(lengths)) if roots[i] != roots[i - 1]] + [len(lengths)]
    first = 0
    for last in ends:
        while first < last:
            end = first + 1
            tokens, weight = lengths[first], weights[first]
            while end < last:
                tokens += lengths[end] - shared[end]  # at least so many
                weight += weights[end]
                if tokens > max_tokens or weight > max_weight:
                    break
                end += 1
            fits = first + 1
            while end > fits:
                middle = (fits + end + 1) // 2
                if _size(lengths, shared, first, middle, min_shared) <= max_tokens:
                    fits = middle
                else:
                    end = middle - 1
            if end < last:
                half = first + 1 + (end - first) // 2
                best = min(range(end, half - 1, -1), key=lambda i: shared[i], default=end)
                # Fewer sequences may take more tokens: what they have in common is then worth sharing no more.
                if _size(lengths, shared, first, best, min_shared) <= max_tokens:
                    end = best
            yield first, end
            first = end


def _size(
    lengths: Sequence[int], shared: Sequence[int], first: int, last: int, min_shared: int
) -> int:
    return build_tree(lengths[first:last], shared[first:last], min_shared).num_tokens
