from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from art.adapter_kit.sequences import TrainingSequence
from art_local.attention import (
    CALL_PAIRS,
    TreeAttention,
    UnsupportedAttentionError,
    plan_blocks,
    tree_attention,
)
from art_local.packing import pack
from art_local.prefix_tree import NO_PARENT, Segment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from art_local.packing import Row

pytestmark = pytest.mark.local


@st.composite
def rows(draw: st.DrawFn) -> Row:
    """A row of sequences over two tokens, which therefore share their beginnings at many depths."""
    all_ids = draw(
        st.lists(st.lists(st.integers(0, 1), min_size=2, max_size=9), min_size=1, max_size=7)
    )
    batch = [
        TrainingSequence(
            ids, [False, *[True] * (len(ids) - 1)], [0.0] * len(ids), [1.0] * len(ids), 1.0
        )
        for ids in all_ids
    ]
    (row,) = pack(batch, 1000, "shared", min_shared=1)
    return row


def visible(
    segments: Sequence[Segment], positions: torch.Tensor, window: int | None
) -> torch.Tensor:
    """Which token sees which, from the parents alone."""
    of_token = [i for i, s in enumerate(segments) for _ in range(s.start, s.end)]
    mask = torch.zeros(len(of_token), len(of_token), dtype=torch.bool)
    for query, own in enumerate(of_token):
        index = own
        while index != NO_PARENT:
            segment = segments[index]
            mask[query, segment.start : min(segment.end, query + 1)] = True
            index = segment.parent
    if window is not None:
        mask &= positions[:, None] - positions[None] < window
    return mask


def plain(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float | None, mask: torch.Tensor
) -> torch.Tensor:
    """Attention written out."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    scores = q @ k.transpose(2, 3) * (q.shape[-1] ** -0.5 if scaling is None else scaling)
    return (scores.masked_fill(~mask, -torch.inf).softmax(-1) @ v).transpose(1, 2)


def queries_keys_values(length: int) -> list[torch.Tensor]:
    """Random ones of four heads that share two."""
    generator = torch.Generator().manual_seed(length)
    return [
        torch.randn(1, heads, length, 8, generator=generator).requires_grad_()
        for heads in (4, 2, 2)
    ]


@given(
    rows(),
    st.none() | st.integers(1, 6),
    st.sampled_from([None, 1.0]),
    st.sampled_from([0, 10, CALL_PAIRS]),
)
def test_outputs_and_gradients_are_those_of_a_plain_mask(
    row: Row, window: int | None, scaling: float | None, call_pairs: int
) -> None:
    """However the row is cut into calls; heads that share keys, scaling and windows are honoured."""
    positions = row.position_ids_BT[0]
    q, k, v = queries_keys_values(len(positions))
    mask = visible(row.segments, positions, window)
    want = plain(q, k, v, scaling, mask)
    got = TreeAttention(row.segments, positions, call_pairs).attend(q, k, v, scaling, window)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    weights = torch.randn(want.shape, generator=torch.Generator().manual_seed(0))
    want_grads = torch.autograd.grad((want * weights).sum(), (q, k, v))
    got_grads = torch.autograd.grad((got * weights).sum(), (q, k, v))
    for got_grad, want_grad in zip(got_grads, want_grads, strict=True):
        torch.testing.assert_close(got_grad, want_grad, rtol=1e-4, atol=1e-5)


@given(rows(), st.none() | st.integers(1, 6))
def test_the_mask_function_says_the_same(row: Row, window: int | None) -> None:
    """It is what a GPU's attention is made from."""
    positions = row.position_ids_BT[0]
    index = torch.arange(len(positions))
    function = TreeAttention(row.segments, positions).mask_function(window)
    zero = torch.tensor(0)
    got = function(zero, zero, index[:, None], index[None])
    assert torch.equal(got, visible(row.segments, positions, window))


def group(prompt: int, completions: Sequence[int]) -> Row:
    """A row with one group."""
    batch = [
        TrainingSequence(
            [0] * prompt + [i + 1] * (n + 1),
            [False] * prompt + [True] * (n + 1),
            [0.0] * (prompt + n + 1),
            [1.0] * (prompt + n + 1),
            1.0,
        )
        for i, n in enumerate(completions)
    ]
    (row,) = pack(batch, 100_000, "shared")
    return row


def test_long_branches_are_computed_one_by_one_and_short_ones_together() -> None:
    """The work grows with what tokens see, not with the square of the row; small groups are one call."""
    long = plan_blocks(group(1000, [300, 400, 500]).segments)
    assert [(b.start, b.end, b.ancestors) for b in long] == [
        (0, 1000, ()),
        (1000, 1300, (0,)),
        (1300, 1700, (0,)),
        (1700, 2200, (0,)),
    ]
    short = plan_blocks(group(1000, [3] * 10).segments)
    assert [(b.start, b.end, b.ancestors) for b in short] == [(0, 1000, ()), (1000, 1030, (0,))]
    assert len(plan_blocks(group(20, [3] * 4).segments)) == 1


def test_without_a_tree_it_is_plain_causal_attention() -> None:
    """A call of the model outside the trainer, with several lines and a window, gives what it always did."""
    q, k, v = (x.expand(3, -1, -1, -1) for x in queries_keys_values(7))
    index = torch.arange(7)
    for window in (None, 3):
        mask = (index[None] <= index[:, None]) & (index[:, None] - index[None] < (window or 7))
        got, _ = tree_attention(torch.nn.Identity(), q, k, v, None, sliding_window=window)
        torch.testing.assert_close(got, plain(q, k, v, None, mask), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [{"softcap": 50.0}, {"s_aux": torch.zeros(4)}, {"is_causal": False}, {"dropout": 0.1}],
)
def test_other_kinds_of_attention_are_refused(options: dict[str, object]) -> None:
    """The layout check then falls back to padded rows, rather than train on something else."""
    q, k, v = queries_keys_values(3)
    with pytest.raises(UnsupportedAttentionError):
        tree_attention(torch.nn.Identity(), q, k, v, None, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("step", [1, 3])
def test_thousands_of_nested_sequences_are_planned(step: int) -> None:
    """A rollout whose every turn is a history of its own is as deep as it has turns; no recursion bounds it."""
    count = 2000
    segments = [
        Segment(step * i, step * (i + 1), step * i, i - 1, step * count) for i in range(count)
    ]
    for call_pairs in (0, CALL_PAIRS):
        blocks = plan_blocks(segments, call_pairs)
        assert [s for block in blocks for s in block.segments] == segments
        assert blocks[-1].ancestors == tuple(range(len(blocks) - 1))
