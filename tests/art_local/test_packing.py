from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from art.adapter_kit.sequences import TrainingSequence
from art_local.packing import Layout, PackStatistics, Row, pack
from art_local.prefix_tree import NO_PARENT

if TYPE_CHECKING:
    from collections.abc import Iterable

pytestmark = pytest.mark.local

LAYOUTS: tuple[Layout, ...] = ("shared", "packed", "padded")
layouts = st.sampled_from(LAYOUTS)


@dataclass(frozen=True, order=True)
class Target:
    """A trained token with all that belongs to it; two batches with the same targets train the same."""

    context: tuple[int, ...]
    token: int
    logprob: float
    temperature: float
    advantage: float


@st.composite
def sequences(draw: st.DrawFn) -> TrainingSequence:
    """A sequence with random masks; its numbers are exact in single precision. Few tokens, so that many are shared."""
    ids = draw(st.lists(st.integers(0, 2), min_size=1, max_size=12))
    trained = [
        False,
        *(draw(st.lists(st.booleans(), min_size=len(ids) - 1, max_size=len(ids) - 1))),
    ]
    eighths = st.integers(-80, 0).map(lambda n: n / 8)
    return TrainingSequence(
        ids,
        trained,
        [draw(eighths) if t else 0.0 for t in trained],
        [draw(st.sampled_from([0.5, 1.0])) if t else 1.0 for t in trained],
        draw(eighths),
    )


batches = st.lists(sequences(), max_size=8)


def targets_of_sequences(batch: Iterable[TrainingSequence]) -> list[Target]:
    """The trained tokens of a batch."""
    return sorted(
        Target(
            tuple(s.token_ids[:i]), s.token_ids[i], s.logprobs[i], s.temperatures[i], s.advantage
        )
        for s in batch
        for i, trained in enumerate(s.trained)
        if trained
    )


def seen_from(row: Row, source: int) -> list[int]:
    """The positions of the row, as flat indices, that a position sees when it is computed."""
    if not row.segments:
        width = row.input_ids_BT.shape[1]
        return list(range(source // width * width, source + 1))
    (index,) = (i for i, s in enumerate(row.segments) if s.start <= source < s.end)
    seen: list[int] = []
    end = source + 1
    while index != NO_PARENT:
        segment = row.segments[index]
        seen = [*range(segment.start, min(segment.end, end)), *seen]
        index = segment.parent
    return seen


def targets_of_rows(rows: Iterable[Row]) -> list[Target]:
    """The trained tokens as a model sees them: what their source sees is the context."""
    found: list[Target] = []
    for row in rows:
        ids = row.input_ids_BT.flatten().tolist()
        for n, source in enumerate(row.sources_N.tolist()):
            found.append(
                Target(
                    tuple(ids[i] for i in seen_from(row, source)),
                    int(row.targets.token_ids_N[n]),
                    float(row.targets.logprobs_N[n]),
                    float(row.targets.temperatures_N[n]),
                    float(row.targets.advantages_N[n]),
                )
            )
    return sorted(found)


@given(batches, st.integers(1, 60), layouts, st.integers(1, 9), st.none() | st.integers(1, 10))
def test_unpacking_gives_back_what_was_packed(
    batch: list[TrainingSequence],
    row_tokens: int,
    layout: Layout,
    min_shared: int,
    max_targets: int | None,
) -> None:
    """Every trained token is there once, behind its own context and with its own numbers."""
    rows = pack(batch, row_tokens, layout, min_shared=min_shared, max_targets=max_targets)
    assert targets_of_rows(rows) == targets_of_sequences(batch)


@given(batches, st.integers(1, 60), layouts, st.integers(1, 9))
def test_positions_are_those_of_the_sequence_alone(
    batch: list[TrainingSequence], row_tokens: int, layout: Layout, min_shared: int
) -> None:
    """What a source sees stands at the positions 0, 1, 2 and so on."""
    for row in pack(batch, row_tokens, layout, min_shared=min_shared):
        positions = row.position_ids_BT.flatten()
        for source in row.sources_N.tolist():
            seen = positions[seen_from(row, source)].tolist()
            assert seen == list(range(len(seen)))


@given(batches, st.integers(1, 60), layouts, st.integers(1, 10))
def test_rows_keep_within_their_budgets(
    batch: list[TrainingSequence], row_tokens: int, layout: Layout, max_targets: int
) -> None:
    """Positions and targets are bounded, except for a single sequence that is larger by itself."""
    for row in pack(batch, row_tokens, layout, min_shared=2, max_targets=max_targets):
        alone = int(row.targets.sequence_N.max()) == 0
        assert alone or row.input_ids_BT.numel() <= row_tokens
        assert alone or len(row.sources_N) <= max_targets


@given(batches, layouts)
def test_the_targets_of_a_sequence_stand_together(
    batch: list[TrainingSequence], layout: Layout
) -> None:
    """Sequences are numbered from 0 in each row, and none is torn apart."""
    counts: list[int] = []
    for row in pack(batch, 30, layout, min_shared=2):
        numbers = row.targets.sequence_N
        assert torch.equal(numbers, numbers.sort().values)
        counts += torch.bincount(numbers).tolist()
    assert sorted(counts) == sorted(sum(s.trained) for s in batch if any(s.trained))


@given(batches, st.integers(1, 60), st.randoms())
def test_the_order_of_the_batch_decides_nothing(
    batch: list[TrainingSequence], row_tokens: int, random_source: random.Random
) -> None:
    """The rows have the same tokens at the same places, whatever order the groups came in."""
    shuffled = random_source.sample(batch, len(batch))
    rows, others = (pack(b, row_tokens, "shared", min_shared=2) for b in (batch, shuffled))
    assert [r.input_ids_BT.tolist() for r in rows] == [r.input_ids_BT.tolist() for r in others]


@given(batches, st.integers(1, 60), layouts)
def test_statistics_count_what_is_there(
    batch: list[TrainingSequence], row_tokens: int, layout: Layout
) -> None:
    """Logical tokens are those of the sequences as cut; only sharing makes the physical ones fewer."""
    rows = pack(batch, row_tokens, layout, min_shared=2)
    statistics = PackStatistics.of(rows, row_tokens)
    last_targets = [max(i for i, t in enumerate(s.trained) if t) for s in batch if any(s.trained)]
    assert statistics.logical_tokens == sum(last_targets)
    assert statistics.physical_tokens <= statistics.logical_tokens
    assert layout == "shared" or statistics.physical_tokens == statistics.logical_tokens
    assert 0 < statistics.efficiency <= 1


def sequence(ids: list[int], num_trained: int) -> TrainingSequence:
    """A sequence whose last tokens are trained."""
    trained = [False] * (len(ids) - num_trained) + [True] * num_trained
    return TrainingSequence(ids, trained, [0.0] * len(ids), [1.0] * len(ids), 1.0)


def test_the_prompt_of_a_group_is_there_once_and_feeds_many_targets() -> None:
    """The last token of the prompt predicts the first token of every completion."""
    prompt = list(range(10, 40))
    group = [sequence([*prompt, first, 7, 8], 3) for first in (1, 2, 3)]
    (row,) = pack(group, 1000, "shared")
    assert row.num_tokens == row.input_ids_BT.numel() == 30 + 3 * 2
    assert row.num_logical_tokens == 3 * 32
    assert row.sources_N.tolist().count(29) == 3
    assert row.position_ids_BT[0, 30:].tolist() == [30, 31] * 3


def test_equal_sequences_are_computed_once_and_trained_each() -> None:
    """Two rollouts that said the same have the same sources and their own targets."""
    twins = [sequence([*range(30), 1, 2], 2) for _ in range(2)]
    twins[1].advantage = -1.0
    (row,) = pack(twins, 1000, "shared")
    assert row.num_tokens == 31
    assert row.sources_N.tolist() == [29, 30, 29, 30]
    assert row.targets.advantages_N.tolist() == [1, 1, -1, -1]


def test_a_tree_larger_than_a_row_repeats_its_prompt() -> None:
    """Nothing is cut: each row has the whole prompt of its completions."""
    prompt = list(range(100, 150))
    group = [sequence([*prompt, *[i] * 21], 21) for i in range(6)]
    rows = pack(group, 110, "shared")
    assert [row.num_tokens for row in rows] == [50 + 3 * 20] * 2
    assert all(row.input_ids_BT[0, :50].tolist() == prompt for row in rows)


def test_a_sequence_longer_than_a_row_gets_its_own() -> None:
    """It is neither cut nor left out."""
    rows = pack([sequence(list(range(100)), 5), sequence([1, 2, 3], 1)], 20, "shared")
    assert [row.num_tokens for row in rows] == [98 + 1, 2]


def test_rows_are_filled_with_the_largest_first() -> None:
    """Sequences that have nothing in common go into the first row with room for them."""
    lengths = [4, 6, 5, 3, 2]
    batch = [sequence([n] * (n + 1), 1) for n in lengths]
    rows = pack(batch, 10, "packed")
    assert [sorted(s.end - s.start for s in row.segments) for row in rows] == [[4, 6], [2, 3, 5]]


def test_sequences_of_like_length_share_a_padded_row() -> None:
    """Sorting by length keeps the padding small; sequences without a trained token take no room."""
    batch = [sequence([1] * n, t) for n, t in ((11, 1), (3, 1), (11, 1), (3, 1), (9, 0))]
    shapes = [tuple(row.input_ids_BT.shape) for row in pack(batch, 20, "padded")]
    assert shapes == [(2, 10), (2, 2)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_follows_the_last_trained_token_is_cut_off(layout: Layout) -> None:
    """Nothing there is trained or seen, so it costs nothing."""
    tail = TrainingSequence([1, 2, 3, 4], [False, True, False, False], [0.0] * 4, [1.0] * 4, 1.0)
    (row,) = pack([tail], 100, layout)
    assert row.input_ids_BT.tolist() == [[1]]
    assert row.targets.token_ids_N.tolist() == [2]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_batch_without_a_trained_token_has_no_rows(layout: Layout) -> None:
    """Also an empty one."""
    assert pack([], 10, layout) == []
    assert pack([sequence([1, 2], 0)], 10, layout) == []
