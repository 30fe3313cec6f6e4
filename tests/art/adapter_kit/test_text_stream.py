from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art.adapter_kit.text_stream import TextStream, overlap


def feed(stream: TextStream, pieces: list[bytes]) -> tuple[list[str], bool]:
    """What is released at each piece, up to a stop string; the rest follows at the end."""
    released = []
    for piece in pieces:
        text, stopped = stream.add(piece)
        released.append(text)
        if stopped:
            return released, True
    return [*released, stream.finish()], False


@given(st.binary(), st.lists(st.integers(0, 200)))
def test_the_pieces_add_up_to_the_decoded_text(data: bytes, cuts: list[int]) -> None:
    """However the bytes are cut, the text is that of decoding them at once."""
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[a:b] for a, b in itertools.pairwise(edges)]
    assert "".join(feed(TextStream(), pieces)[0]) == data.decode("utf-8", errors="replace")


@given(st.text("abc"), st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=3))
def test_text_ends_before_the_first_stop_string(text: str, stops: list[str]) -> None:
    """Fed byte by byte, the released text never holds any part of the stop string that ended it."""
    released, stopped = feed(TextStream(stops), [bytes([byte]) for byte in text.encode()])
    ends = [i for i in range(len(text) + 1) if any(text[:i].endswith(stop) for stop in stops)]
    if not ends:
        assert ("".join(released), stopped) == (text, False)
        return
    seen = text[: ends[0]]
    start = min(seen.find(stop) for stop in stops if stop in seen)
    assert ("".join(released), stopped) == (seen[:start], True)


def test_half_a_character_is_held_back() -> None:
    """The bytes of an emoji give no text before the last one, and a replacement character if it never comes."""
    emoji = "🙂".encode()
    stream = TextStream()
    assert [stream.add(bytes([byte]))[0] for byte in emoji] == ["", "", "", "🙂"]
    stream.add(emoji[:2])
    assert stream.finish() == "\ufffd"


def test_what_may_become_a_stop_string_is_held_back() -> None:
    """Text that could be the beginning of a stop string waits until it is clear that it is not."""
    stream = TextStream(["END"])
    assert [stream.add(piece)[0] for piece in (b"a", b"E", b"N", b"x")] == ["a", "", "", "ENx"]
    assert stream.add(b" EN") == (" ", False)
    assert stream.finish() == "EN"


@pytest.mark.parametrize(
    ("text", "marker", "length"),
    [
        ("ab<to", "<tool>", 3),
        ("ab", "<tool>", 0),
        ("<tool>", "<tool>", 0),
        ("", "x", 0),
        ("aa", "aab", 2),
    ],
)
def test_overlap_is_the_longest_beginning_at_the_end(text: str, marker: str, length: int) -> None:
    """A whole marker is no overlap: it is found, not waited for."""
    assert overlap(text, marker) == length
