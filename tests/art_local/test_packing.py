from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art.adapter_kit.sequences import TrainingSequence
from art_local.packing import MicroBatch, micro_batches

if TYPE_CHECKING:
    from collections.abc import Iterable

pytestmark = pytest.mark.local


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
    """A sequence with random masks; its numbers are exact in single precision."""
    ids = draw(st.lists(st.integers(0, 9), min_size=1, max_size=12))
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


def targets_of_micro_batches(batches: Iterable[MicroBatch]) -> list[Target]:
    """The trained tokens as a model sees them: what stands up to a predicting position is the context."""
    found: list[Target] = []
    for batch in batches:
        positions = batch.predicts_BT.nonzero().tolist()  # row after row, as the flat tensors are
        for n, (row, position) in enumerate(positions):
            found.append(
                Target(
                    tuple(batch.input_ids_BT[row, : position + 1].tolist()),
                    int(batch.targets_N[n]),
                    float(batch.sampled_logprobs_N[n]),
                    float(batch.temperatures_N[n]),
                    float(batch.advantages_N[n]),
                )
            )
    return sorted(found)


@given(st.lists(sequences(), max_size=8), st.integers(1, 60), st.none() | st.integers(1, 10))
def test_unpacking_gives_back_what_was_packed(
    batch: list[TrainingSequence], max_tokens: int, max_targets: int | None
) -> None:
    """Every trained token is there once, behind its own context and with its own numbers."""
    packed = micro_batches(batch, max_tokens, max_targets)
    assert targets_of_micro_batches(packed) == targets_of_sequences(batch)


@given(st.lists(sequences(), max_size=8), st.integers(1, 60), st.integers(1, 10))
def test_micro_batches_keep_within_their_budgets(
    batch: list[TrainingSequence], max_tokens: int, max_targets: int
) -> None:
    """Padded tokens and targets are bounded, except for a single sequence that is larger by itself."""
    for packed in micro_batches(batch, max_tokens, max_targets):
        rows = len(packed.input_ids_BT)
        assert rows == 1 or packed.input_ids_BT.numel() <= max_tokens
        assert rows == 1 or len(packed.targets_N) <= max_targets


def test_sequences_of_like_length_share_a_micro_batch() -> None:
    """Sorting by length keeps the padding small; sequences without a trained token take no room."""

    def sequence(length: int, *, trained: bool = True) -> TrainingSequence:
        mask = [False] * (length - 1) + [trained]
        return TrainingSequence([1] * length, mask, [0.0] * length, [1.0] * length, 1.0)

    batch = [sequence(11), sequence(3), sequence(11), sequence(3), sequence(9, trained=False)]
    shapes = [tuple(b.input_ids_BT.shape) for b in micro_batches(batch, 20)]
    assert shapes == [(2, 10), (2, 2)]


def test_what_follows_the_last_trained_token_is_cut_off() -> None:
    """Nothing there is trained or seen, so it costs nothing."""
    sequence = TrainingSequence(
        [1, 2, 3, 4], [False, True, False, False], [0.0] * 4, [1.0] * 4, 1.0
    )
    (packed,) = micro_batches([sequence], 100)
    assert packed.input_ids_BT.tolist() == [[1]]
    assert packed.targets_N.tolist() == [2]
