from __future__ import annotations

import datetime as dt
import math
from typing import Any

import pytest
import yaml
from hypothesis import given

from art.books.trajectory_yaml import parse_yaml
from art.equality import same_values
from tests.strategies import json_values

NUMPY = """
value: !!python/object/apply:numpy.{core}.multiarray.scalar
- &id001 !!python/object/apply:numpy.dtype
  args: [{code}, false, true]
  state: !!python/tuple [3, '{order}', null, null, null, -1, -1, 0]
- !!binary |
  {data}
"""


@given(json_values)
def test_what_the_dumper_wrote_is_read_back(value: Any) -> None:
    """Any JSON value survives `yaml.dump`, lone surrogates, NaN and huge numbers included."""
    assert same_values(parse_yaml(yaml.dump(value)), value)


def test_tuples_become_lists_and_times_stay_text() -> None:
    """As in JSON, which has neither."""
    value = {"pair": (1, ("a",)), "at": dt.datetime(2025, 6, 1, 12)}  # noqa: DTZ001 - as upstream had it
    assert parse_yaml(yaml.dump(value)) == {"pair": [1, ["a"]], "at": "2025-06-01 12:00:00"}


@pytest.mark.parametrize(
    ("code", "order", "data", "expected"),
    [
        ("f8", "<", "AAAAAAAA+D8=", 1.5),
        ("f4", "<", "AAAAPw==", 0.5),
        ("i8", ">", "AAAAAAAAAAM=", 3),
        ("b1", "|", "AQ==", True),
        ("f8", "<", "AAAAAAAA+H8=", math.nan),
    ],
)
@pytest.mark.parametrize("core", ["core", "_core"])
def test_numpy_scalars_become_the_numbers_they_hold(
    core: str, code: str, order: str, data: str, expected: float
) -> None:
    """A metric set to a mean of numpy was dumped with Python tags, which upstream's own reader refuses."""
    text = NUMPY.format(core=core, code=code, order=order, data=data)
    assert same_values(parse_yaml(text), {"value": expected})


@pytest.mark.parametrize(
    "text",
    [
        NUMPY.format(core="core", code="V8", order="<", data="AAAAAAAA+D8="),
        NUMPY.format(core="core", code="f8", order="<", data="AAAA"),
        "!!python/object/apply:numpy.core.multiarray.scalar [1, 2]",
        "!!python/object/apply:os.getcwd []",
        "!!python/name:os.getcwd",
        "[1",
    ],
)
def test_whatever_else_is_refused(text: str) -> None:
    """No tag runs code, and nothing is guessed."""
    with pytest.raises(ValueError, match="not the YAML of plain values"):
        parse_yaml(text)


def test_a_shared_number_type_is_read_for_each_number() -> None:
    """The dumper writes the type of several numbers once and refers to it."""
    first = NUMPY.format(core="core", code="f4", order="<", data="AAAAPw==")
    second = (
        "other: !!python/object/apply:numpy.core.multiarray.scalar\n- *id001\n- !!binary AAAAPw==\n"
    )
    assert parse_yaml(first + second) == {"value": 0.5, "other": 0.5}
