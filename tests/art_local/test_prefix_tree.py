from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_local import prefix_tree
from art_local.prefix_tree import NO_PARENT, build_tree, cut_runs

pytestmark = pytest.mark.local

# Few letters, so that many sequences begin alike.
sorted_sequences = st.lists(
    st.text("ab", min_size=1, max_size=9).map(list), min_size=1, max_size=9
).map(sorted)


def shared_with_previous(sequences: list[list[str]]) -> list[int]:
    """How many first letters each has in common with the one before it."""

    def common(a: list[str], b: list[str]) -> int:
        same = [x == y for x, y in zip(a, b, strict=False)]
        return same.index(False) if False in same else len(same)

    return [0, *(common(a, b) for a, b in pairwise(sequences))]


@given(sorted_sequences, st.integers(1, 12))
def test_the_path_to_a_leaf_spells_the_sequence(
    sequences: list[list[str]], min_shared: int
) -> None:
    """Segments lie side by side, positions run on from the parent's, and each sequence is a path."""
    tree = build_tree([len(s) for s in sequences], shared_with_previous(sequences), min_shared)
    letters: list[str | None] = [None] * tree.num_tokens
    for number, sequence in enumerate(sequences):
        path = tree.path(number)
        assert tree.segments[tree.roots[number]] is path[0]
        assert path[0].parent == NO_PARENT
        indices = [i for segment in path for i in range(segment.start, segment.end)]
        positions = [s.position + i for s in path for i in range(s.end - s.start)]
        assert positions == list(range(len(sequence)))
        for index, letter in zip(indices, sequence, strict=True):
            assert letters[index] in (None, letter)
            letters[index] = letter
    assert None not in letters
    assert all(a.end == b.start for a, b in pairwise(tree.segments))


@given(sorted_sequences, st.integers(1, 12))
def test_a_token_sees_its_own_path_and_nothing_else(
    sequences: list[list[str]], min_shared: int
) -> None:
    """The rule by `subtree_end` says of each pair of tokens the same as the parents do."""
    segments = build_tree(
        [len(s) for s in sequences], shared_with_previous(sequences), min_shared
    ).segments
    of_token = [i for i, s in enumerate(segments) for _ in range(s.start, s.end)]
    for query, own in enumerate(of_token):
        path, index = set(), own
        while index != NO_PARENT:
            path.add(index)
            index = segments[index].parent
        for key in range(query + 1):
            assert (query < segments[of_token[key]].subtree_end) == (of_token[key] in path)


def test_sharing_is_for_what_saves_enough() -> None:
    """Three tokens of four sequences save nine; of two they save three."""
    four = [3 + 2] * 4
    assert build_tree(four, [0, 3, 3, 3], 9).num_tokens == 3 + 4 * 2
    assert build_tree(four, [0, 3, 3, 3], 10).num_tokens == 20
    # All four share too little, but the last two share more.
    assert build_tree(four, [0, 1, 1, 4], 4).num_tokens == 5 + 5 + 4 + 1 + 1


@given(sorted_sequences)
def test_everything_is_shared_where_every_token_counts(sequences: list[list[str]]) -> None:
    """Each sequence then adds only what it does not have in common with the one before it."""
    lengths, shared = [len(s) for s in sequences], shared_with_previous(sequences)
    assert build_tree(lengths, shared, 1).num_tokens == sum(lengths) - sum(shared)


@given(sorted_sequences, st.integers(1, 12), st.integers(1, 40), st.integers(1, 5))
def test_runs_cover_everything_once_and_fit(
    sequences: list[list[str]], min_shared: int, max_tokens: int, max_weight: int
) -> None:
    """Only a single sequence may exceed a bound."""
    lengths, shared = [len(s) for s in sequences], shared_with_previous(sequences)
    runs = list(
        cut_runs(
            lengths,
            shared,
            [1] * len(lengths),
            min_shared=min_shared,
            max_tokens=max_tokens,
            max_weight=max_weight,
        )
    )
    assert [i for a, b in runs for i in range(a, b)] == list(range(len(sequences)))
    for a, b in runs:
        if b - a > 1:
            assert build_tree(lengths[a:b], shared[a:b], min_shared).num_tokens <= max_tokens
            assert b - a <= max_weight


def test_a_tree_is_cut_where_little_has_to_be_repeated() -> None:
    """Two groups of three under a short common beginning are parted between the groups, not inside one."""
    lengths = [20] * 6
    shared = [0, 15, 15, 2, 15, 15]
    runs = cut_runs(lengths, shared, [1] * 6, min_shared=1, max_tokens=55, max_weight=100)
    assert list(runs) == [(0, 3), (3, 6)]


def test_fewer_sequences_that_take_more_tokens_are_no_place_to_cut() -> None:
    """With fewer of them a beginning may not be worth sharing, so that the shorter run is the larger tree."""
    lengths = [1, 1, 2, 9, 8, 3, 7, 8, 2, 7, 3, 3, 5]
    shared = [0, 1, 1, 2, 4, 1, 2, 0, 1, 2, 2, 3, 3]
    for max_weight in range(1, 8):
        runs = cut_runs(
            lengths, shared, [1] * 13, min_shared=4, max_tokens=8, max_weight=max_weight
        )
        for a, b in runs:
            assert b - a == 1 or build_tree(lengths[a:b], shared[a:b], 4).num_tokens <= 8


@pytest.mark.parametrize(("count", "beginning", "rest"), [(8000, 1, 3), (8192, 28, 4)])
def test_thousands_of_short_sequences_are_cut_with_bounded_work(
    count: int, beginning: int, rest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trees are built for a few lengths of each run only, although much that begins alike is not worth sharing."""
    letters = random.Random(0)
    sequences = sorted(
        [*["a"] * beginning, *letters.choices("abcdefghijklmnopqrstuvwxyz", k=rest)]
        for _ in range(count)
    )
    work = 0

    def counting(lengths: list[int], shared: list[int], min_shared: int) -> prefix_tree.Tree:
        nonlocal work
        work += len(lengths)
        assert work <= 30 * count
        return build_tree(lengths, shared, min_shared)

    monkeypatch.setattr(prefix_tree, "build_tree", counting)
    runs = prefix_tree.cut_runs(
        [beginning + rest] * count,
        shared_with_previous(sequences),
        [1] * count,
        min_shared=16,
        max_tokens=4096,
        max_weight=1 << 62,
    )
    assert sum(b - a for a, b in runs) == count
