"""What counts as a number in a metric, whoever made it."""

from __future__ import annotations

from typing import Protocol, SupportsFloat, cast, runtime_checkable


@runtime_checkable
class _Array(Protocol):
    """An array or array scalar of numpy, torch or jax, told without importing any of them."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def item(self) -> object: ...


# To look for the methods of an array or a number in these would take ten times as long.
_PLAIN = frozenset({int, bool})


def to_float(value: object, what: str) -> float:
    """Turn a scalar into a plain float.

    Booleans, numbers of the standard library, and zero-dimensional values of numpy, torch and the like count;
    strings and arrays do not, even of one element.

    Args:
        value: Anything a caller may pass as a metric.
        what: Names the value in the error message.

    Raises:
        TypeError: The value is not a scalar.
        OverflowError: The value is an integer too large for a float.
    """
    if type(value) is float:  # by far the most
        return value
    scalar = value
    if type(scalar) not in _PLAIN and isinstance(scalar, _Array) and len(scalar.shape) == 0:
        scalar = scalar.item()
    if type(scalar) not in _PLAIN and not _is_number(scalar):
        raise TypeError(f"{what} is {_describe(value)}; use a number")
    try:
        return float(cast("SupportsFloat", scalar))
    except OverflowError as error:
        raise OverflowError(f"{what} is an integer too large for a float") from error
    except (TypeError, ValueError) as error:
        raise TypeError(f"{what} is {_describe(value)}, which is no number: {error}") from error


def _is_number(scalar: object) -> bool:
    return isinstance(scalar, SupportsFloat) and not isinstance(scalar, _Array)


def _describe(value: object) -> str:
    if value is None:
        return "None"
    if isinstance(value, _Array) and len(value.shape) > 0:
        return f"an array of shape {tuple(value.shape)}"
    return f"a {type(value).__name__}"
