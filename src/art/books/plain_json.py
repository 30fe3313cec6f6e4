"""Values as plain JSON, and JSON as text that gives every value back.

Python strings may hold lone surrogates, which no file format takes. There are two texts for such a value:
`shown` puts U+FFFD in their place; `exact_text` escapes them, and `parse_exact` gives them back.
"""

from __future__ import annotations

import json
import math
import re
import sys
from typing import Any, TypeAlias

import pydantic

Scalar: TypeAlias = str | int | float | bool | None

# Python's own parser gives up a little below its recursion limit of 1000 frames, the caller's included.
# What was written must be readable from a deeper stack too.
MAX_DEPTH = 500

_PLAIN_SCALARS = frozenset({str, int, float, bool, type(None)})
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPE = re.compile(r"\\(?:u(d[89a-f][0-9a-f]{2})|.)", re.DOTALL)


class NotPlainError(ValueError):
    """Raised when a value has no JSON form; the message says why."""


def plain_scalar(value: object) -> Scalar:
    """Return a str, int, float, bool or None of exactly these types.

    Subclasses (enumerations, `numpy.float64`) and zero-dimensional numpy and torch values become the
    plain value they stand for.

    Raises:
        NotPlainError: The value is no scalar.
    """
    if type(value) not in _PLAIN_SCALARS:
        value = _unwrapped(value)
    if isinstance(value, str):
        return str.__str__(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return _checked_int(int(value))
    if isinstance(value, float):
        # One NaN for all: JSON does not keep the sign and payload that a column would show.
        return math.nan if math.isnan(value) else float(value)
    raise NotPlainError(f"is a {type(value).__name__}, which has no JSON form")


def _unwrapped(value: Any) -> object:
    """Take the Python value out of a numpy or torch scalar, without importing either."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic | numpy.ndarray) and value.ndim == 0:
        # `item` of a long double is the long double itself.
        return float(value) if isinstance(value, numpy.longdouble) else value.item()
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor) and value.dim() == 0:
        return value.item()
    return value


def _checked_int(value: int) -> int:
    try:
        str(value)
    except ValueError as error:
        raise NotPlainError(f"holds an integer too large for text ({error})") from error
    return value


def plain(value: object, *, models: bool = False, _depth: int = 0) -> Any:
    """Return a value as dicts with str keys, lists and plain scalars; tuples become lists.

    Args:
        value: Any value; it is not changed.
        models: Take pydantic models too, as the dict of their `written_fields`.

    Raises:
        NotPlainError: The value has no JSON form, contains itself, or is nested deeper than `MAX_DEPTH`.
    """
    if _depth > MAX_DEPTH:
        raise NotPlainError(f"contains itself, or is nested deeper than {MAX_DEPTH} levels")
    if models and isinstance(value, pydantic.BaseModel):
        value = written_fields(value)
    if isinstance(value, dict):
        # Loops, not comprehensions: these would take a second frame of the stack for each level.
        fields: dict[str, Any] = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise NotPlainError(
                    f"has the key {key!r}, which is a {type(key).__name__}, not a str"
                )
            fields[str.__str__(key)] = plain(item, models=models, _depth=_depth + 1)
        return fields
    if isinstance(value, (list, tuple)):
        items: list[Any] = []
        for item in value:
            items.append(plain(item, models=models, _depth=_depth + 1))  # noqa: PERF401 - as above
        return items
    return plain_scalar(value)


def jsonable(value: object) -> Any:
    """Return a value as the plain JSON value that pydantic serialises it to (models, dates, enumerations, ...).

    Raises:
        ValueError: It holds something that pydantic cannot serialise.
    """
    return pydantic.TypeAdapter(Any).dump_python(value, mode="json")


def written_fields(model: pydantic.BaseModel) -> dict[str, Any]:
    """Return the fields of a model that were set or hold a value, extras included, sorted by name.

    `model_dump` is not used: it follows the declared types, so it loses fields of subclasses and warns.
    """
    extras = model.model_extra or {}
    fields = {
        name: value
        for name, value in model
        if value is not None or name in model.model_fields_set or name in extras
    }
    return dict(sorted(fields.items()))


def shown(text: str) -> str:
    """Return text with U+FFFD in place of lone surrogates, as any file format takes it."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def json_text(value: object) -> str:
    """Return compact JSON of a plain value; lone surrogates stay in it as they are."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def exact_text(value: object) -> str:
    """Return compact JSON of a plain value with surrogates escaped; `parse_exact` reverses it."""
    return _SURROGATE.sub(lambda match: f"\\u{ord(match.group()):04x}", json_text(value))


def parse_exact(text: str) -> Any:
    """Parse the JSON of `exact_text`.

    A JSON parser would join an escaped high and low surrogate to one character. In this text such an escape
    only ever stands for a single surrogate, so surrogates are put back before it is parsed.
    """
    if "\\ud" in text:
        text = _ESCAPE.sub(lambda match: chr(int(match[1], 16)) if match[1] else match[0], text)
    return json.loads(text)
