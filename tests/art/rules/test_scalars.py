from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from art.rules.scalars import to_float

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize("make", [float, int, bool, np.float16, np.int8, np.bool_, np.array])
def test_scalars_become_plain_floats(make: Callable[[Any], Any]) -> None:
    """A one of any kind of number is 1.0, of type float exactly."""
    result = to_float(make(1), "x")
    assert result == 1.0
    assert type(result) is float


def test_error_names_the_value_and_its_kind() -> None:
    """The message says which value it was and what is wrong with it."""
    with pytest.raises(TypeError, match=r"the reward is an array of shape \(1,\); use a number"):
        to_float(np.array([1.0]), "the reward")
    with pytest.raises(TypeError, match="the reward is None"):
        to_float(None, "the reward")
    with pytest.raises(TypeError, match="the reward is a str"):
        to_float("1", "the reward")
