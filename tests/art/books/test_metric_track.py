from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art.books.metric_track import MetricTrack

rows = st.lists(
    st.tuples(st.integers(-5, 12), st.floats(-1e6, 1e6), st.floats(0.5, 9.0)), max_size=20
)
Rows = list[tuple[int, float, float]]


def add(track: MetricTrack, some: Rows) -> None:
    track.add([r[0] for r in some], [r[1] for r in some], [r[2] for r in some])


def test_steps_come_out_ascending_with_their_weighted_means() -> None:
    """Rows may come in any order, and several to a step."""
    track = MetricTrack()
    add(track, [(3, 1.0, 1.0), (1, 0.0, 1.0), (3, 0.0, 3.0)])
    assert list(track.means().items()) == [(1, 0.0), (3, 0.25)]
    assert track.means([4, 3, 2]) == {3: 0.25}


def test_an_empty_track_has_no_trend() -> None:
    """Without a row there is no line, and one row more is a line of one point."""
    track = MetricTrack()
    add(track, [])
    assert track.trend() is None
    assert track.means() == {}
    one = track.trend_with(3, 0.5, 1.0)
    assert one is not None
    assert one.multiplier() == 1.0


@given(rows, st.lists(st.integers(0, 20), max_size=4))
def test_a_track_does_not_depend_on_how_many_rows_come_at_a_time(
    some: Rows, cuts: list[int]
) -> None:
    """One by one, in parts or at once: the same means and the same line, to the last bit."""
    whole, parts = MetricTrack(), MetricTrack()
    add(whole, some)
    bounds = [0, *sorted(cut for cut in cuts if cut < len(some)), len(some)]
    for start, stop in itertools.pairwise(bounds):
        add(parts, some[start:stop])
        parts.trend()
    assert parts.means() == whole.means()
    assert parts.trend() == whole.trend()


@given(rows, st.tuples(st.integers(-5, 12), st.floats(-1e6, 1e6), st.floats(0.5, 9.0)))
def test_the_line_with_one_more_row_is_the_one_after_adding_it(
    some: Rows, more: tuple[int, float, float]
) -> None:
    """Asking what a row would change changes nothing, and tells the truth."""
    track = MetricTrack()
    add(track, some)
    before = track.means()
    asked = track.trend_with(*more)
    assert track.means() == before
    add(track, [more])
    assert asked == track.trend()


def test_ascending_rows_behind_the_last_are_taken_as_a_whole() -> None:
    """A block that goes on where the track ends equals its rows one by one; one that overlaps is merged."""
    track = MetricTrack()
    add(track, [(0, 1.0, 1.0), (1, 2.0, 1.0)])
    track.trend()
    add(track, [(2, 3.0, 1.0), (3, 4.0, 1.0)])
    add(track, [(3, 6.0, 1.0), (4, 6.0, 1.0)])
    assert track.means() == {0: 1.0, 1: 2.0, 2: 3.0, 3: 5.0, 4: 6.0}
    trend = track.trend()
    assert trend is not None
    assert trend.multiplier() == pytest.approx(7.5)


def test_another_row_of_the_first_step_makes_the_line_anew() -> None:
    """The value that the line is measured from is that of all rows of the first step, whenever they came."""
    track, whole = MetricTrack(), MetricTrack()
    add(track, [(0, 1.0, 1.0), (1, 2.0, 1.0)])
    track.trend()
    add(track, [(0, 2.0, 1.0)])
    add(whole, [(0, 1.0, 1.0), (1, 2.0, 1.0), (0, 2.0, 1.0)])
    assert track.trend() == whole.trend()
