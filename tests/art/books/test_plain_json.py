from __future__ import annotations

import enum
import json
import math
from typing import Any

import numpy as np
import pydantic
import pytest
from hypothesis import given

from art.books.plain_json import (
    MAX_DEPTH,
    NotPlainError,
    exact_text,
    parse_exact,
    plain,
    plain_scalar,
    shown,
    written_fields,
)
from art.equality import same_values
from tests.strategies import json_values


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@given(json_values)
def test_exact_text_gives_every_json_value_back(value: Any) -> None:
    """Whatever JSON can hold, surrogates in any order included, survives the text."""
    text = exact_text(plain(value))

    text.encode("utf-8")
    assert same_values(parse_exact(text), value)


def test_exact_text_keeps_two_surrogates_apart_from_the_character_they_spell() -> None:
    """A plain JSON parser would join the two halves into one character."""
    halves = "\ud83d\ude00"

    assert json.loads(json.dumps(halves)) == "😀"
    assert parse_exact(exact_text(halves)) == halves
    assert parse_exact(exact_text("😀")) == "😀"
    assert parse_exact(exact_text("\\ud83d")) == "\\ud83d"


def test_shown_replaces_lone_surrogates_only() -> None:
    """Text that a file can hold is shown as it is."""
    assert shown("a\ud800b") == "a\ufffdb"
    assert shown("é😀\x00") == "é😀\x00"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), 0.5),
        (np.float64(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.array(2), 2),
        (np.longdouble(1.5), 1.5),
        (enum.IntEnum("Level", "LOW").LOW, 1),  # type: ignore[attr-defined] # made in place
        (enum.StrEnum("Colour", "RED").RED, "red"),  # type: ignore[attr-defined] # made in place
    ],
)
def test_scalars_of_other_types_become_the_plain_value(value: object, expected: object) -> None:
    """Scalars of numpy and enumerations are stored as the number or text that they are."""
    result = plain_scalar(value)

    assert result == expected
    assert type(result) is type(expected)


def test_every_nan_becomes_the_same_nan() -> None:
    """Sign and payload of a NaN do not reach the file, so the same groups always give the same bytes."""
    result = plain_scalar(-math.nan)

    assert isinstance(result, float)
    assert math.isnan(result)
    assert math.copysign(1.0, result) == 1.0


@pytest.mark.parametrize("value", [object(), {1, 2}, b"raw", 1j, np.zeros(3), {1: "a"}, [object()]])
def test_a_value_without_a_json_form_is_refused(value: object) -> None:
    """An object, a set, bytes, an array or a key that is no text cannot be stored."""
    with pytest.raises(NotPlainError):
        plain(value)


def test_an_integer_too_large_for_text_is_refused() -> None:
    """Python refuses to print it, so it could not be read back either."""
    with pytest.raises(NotPlainError, match="too large"):
        plain({"n": 10**5000})


def test_nesting_is_limited_and_a_loop_is_found() -> None:
    """What is nested too deep to be read back, or contains itself, is refused; the limit itself is fine."""
    loop: list[Any] = []
    loop.append(loop)

    assert parse_exact(exact_text(plain(nested(MAX_DEPTH)))) == nested(MAX_DEPTH)
    for value in (nested(MAX_DEPTH + 1), nested(100_000), loop):
        with pytest.raises(NotPlainError, match="nested deeper"):
            plain(value)


def test_plain_copies_and_turns_tuples_into_lists() -> None:
    """The caller's value is neither changed nor shared."""
    value = {"a": (1, [2])}

    result = plain(value)
    result["a"][1].append(3)

    assert result == {"a": [1, [2, 3]]}
    assert value == {"a": (1, [2])}


def test_written_fields_are_those_set_or_holding_a_value() -> None:
    """Fields of a subclass, defaults with a value and extras are kept; an unset None is not."""

    class Base(pydantic.BaseModel, extra="allow"):
        b: int | None = None
        a: str = "default"
        c: int | None = None

    model = Base.model_validate({"c": None, "z": None})

    assert list(written_fields(model).items()) == [("a", "default"), ("c", None), ("z", None)]
