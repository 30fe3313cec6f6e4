"""Values as plain JSON, and JSON as text that gives every value back.

Python strings may hold lone surrogates, which no file format takes. There are two texts for such a value:
`shown` puts U+FFFD in their place; `exact_text` escapes them, and `parse_exact` gives them back.
"""

from __future__ import annotations

import json
import math
import re
import sys
from typing import Any, TypeAlias, cast

import pydantic
import pydantic_core

Scalar: TypeAlias = str | int | float | bool | None

# Python's own parser gives up a little below its recursion limit of 1000 frames, the caller's included.
# What was written must be readable from a deeper stack too.
MAX_DEPTH = 500

PLAIN_SCALARS = frozenset({str, int, float, bool, type(None)})
# Of exactly these types every value is plain already.
PLAIN_AS_IT_IS = frozenset({str, bool, type(None)})
_NUMBERS = frozenset({int, float})
_CONTAINERS = frozenset({dict, list})
# Python's limit for an integer as text can be set, but not below 640 digits.
_BITS_THAT_ARE_FINE = 2**11
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
    if type(value) not in PLAIN_SCALARS:
        value = _unwrapped(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return _checked_int(int(value))
    if isinstance(value, str):
        return str.__str__(value)
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
    if value.bit_length() < _BITS_THAT_ARE_FINE:
        return value
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
    kind = type(value)
    if kind in PLAIN_AS_IT_IS:
        return value
    if kind in _NUMBERS:
        return plain_scalar(value)
    if _depth > MAX_DEPTH:
        raise NotPlainError(f"contains itself, or is nested deeper than {MAX_DEPTH} levels")
    if models and kind not in _CONTAINERS and isinstance(value, pydantic.BaseModel):
        value = written_fields(value)
    if isinstance(value, dict):
        # Loops, not comprehensions: these would take a second frame of the stack for each level. And most
        # values are texts, which need no call.
        fields: dict[str, Any] = {}
        for key, item in value.items():
            if type(key) is not str:
                key = _plain_key(key)  # noqa: PLW2901 - the same key, made plain
            is_done = type(item) in PLAIN_AS_IT_IS
            fields[key] = item if is_done else plain(item, models=models, _depth=_depth + 1)
        return fields
    if isinstance(value, (list, tuple)):
        items: list[Any] = []
        for item in value:
            is_done = type(item) in PLAIN_AS_IT_IS
            items.append(item if is_done else plain(item, models=models, _depth=_depth + 1))
        return items
    return plain_scalar(value)


def _plain_key(key: object) -> str:
    if not isinstance(key, str):
        raise NotPlainError(f"has the key {key!r}, which is a {type(key).__name__}, not a str")
    return str.__str__(key)


def plain_fields(fields: dict[str, Any], *, models: bool = False) -> dict[str, Any]:
    """Return a dict of the user's as plain JSON.

    Raises:
        NotPlainError: A value has no JSON form; the message starts with `['key']`.
    """
    try:
        return cast("dict[str, Any]", plain(fields, models=models))
    except NotPlainError:
        for key, value in fields.items():
            try:
                plain({key: value}, models=models)
            except NotPlainError as error:
                raise NotPlainError(f"[{key!r}] {error}") from error
        raise


def jsonable(value: object) -> Any:
    """Return a value as the plain JSON value that pydantic serialises it to (models, dates, enumerations, ...).

    Raises:
        ValueError: It holds something that pydantic cannot serialise.
    """
    return pydantic.TypeAdapter(Any).dump_python(value, mode="json")


def written_fields(model: pydantic.BaseModel) -> dict[str, Any]:
    """Return the fields of a model that were set or hold a value, in order of declaration, then the extras.

    `model_dump` is not used: it follows the declared types, so it loses fields of subclasses and warns.
    """
    # pydantic's own iteration and properties take several times as long, which adds up over a step's turns.
    was_set = model.__pydantic_fields_set__
    fields = {
        name: value for name, value in vars(model).items() if value is not None or name in was_set
    }
    extras = model.__pydantic_extra__
    return {**fields, **extras} if extras else fields


def shown(text: str) -> str:
    """Return text with U+FFFD in place of lone surrogates, as any file format takes it."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def json_text(value: object) -> str:
    """Return compact JSON of a plain value; lone surrogates stay in it as they are."""
    try:
        return pydantic_core.to_json(value, inf_nan_mode="constants").decode()
    except pydantic_core.PydanticSerializationError:  # a lone surrogate, or nested too deep for it
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def parse_json(text: str) -> Any:
    """Parse JSON as `json.loads` does; the compiled parser is asked first."""
    try:
        return pydantic_core.from_json(text)
    except ValueError:  # an escaped lone surrogate, nested too deep for it, or no JSON at all
        return json.loads(text)


def stored_text(value: object) -> tuple[str, bool]:
    """Return compact JSON of a plain value as any file format takes it, and whether it gives the value back."""
    text = json_text(value)
    in_file = shown(text)
    return in_file, in_file == text


def exact_text(value: object) -> str:
    """Return compact JSON of a plain value with surrogates escaped; `parse_exact` reverses it."""
    text = json_text(value)
    if text.isascii():
        return text
    return _SURROGATE.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


def parse_exact(text: str) -> Any:
    """Parse the JSON of `exact_text`.

    A JSON parser would join an escaped high and low surrogate to one character. In this text such an escape
    only ever stands for a single surrogate, so surrogates are put back before it is parsed.
    """
    if "\\ud" in text:
        text = _ESCAPE.sub(lambda match: chr(int(match[1], 16)) if match[1] else match[0], text)
        return json.loads(text)
    return parse_json(text)
