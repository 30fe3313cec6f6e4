"""Upstream's YAML as plain values. Needs pyyaml: import this module lazily.

`yaml.dump` wrote it, which puts a Python tag on what YAML has no form for. In rollouts that is a tuple or a
numpy scalar; both are rebuilt here from their parts. Any other Python tag is refused, and none runs code.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import yaml

_PYTHON = "tag:yaml.org,2002:python/"
# numpy's names of number types, as `struct` spells them
_NUMBERS = {
    "b1": "?",
    "i1": "b",
    "i2": "h",
    "i4": "i",
    "i8": "q",
    "u1": "B",
    "u2": "H",
    "u4": "I",
    "u8": "Q",
    "f2": "e",
    "f4": "f",
    "f8": "d",
}


class _NumberType(NamedTuple):
    code: str
    byte_order: str


class _PurePythonLoader(yaml.SafeLoader):
    """Reads all that `yaml.dump` writes."""


class _CompiledLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The same, many times faster; refuses an escaped lone surrogate."""


def parse_yaml(text: str) -> Any:
    """Return the value of a YAML document.

    Raises:
        ValueError: It is no YAML, or holds a Python object that is not plain data.
    """
    try:
        try:
            return yaml.load(text, Loader=_CompiledLoader)  # noqa: S506 - a safe loader
        except yaml.YAMLError:
            return yaml.load(text, Loader=_PurePythonLoader)  # noqa: S506 - a safe loader
    except yaml.YAMLError as error:
        raise ValueError(f"not the YAML of plain values: {error}") from error


def _list_of_tuple(loader: Any, node: yaml.SequenceNode) -> list[Any]:
    items: list[Any] = loader.construct_sequence(node, deep=True)
    return items


def _text_of_time(loader: Any, node: yaml.ScalarNode) -> str:
    text: str = loader.construct_scalar(node)
    return text


def _number_type(loader: Any, node: yaml.MappingNode) -> _NumberType:
    fields = loader.construct_mapping(node, deep=True)
    return _NumberType(code=str(fields["args"][0]), byte_order=str(fields["state"][1]))


def _number(loader: Any, node: yaml.SequenceNode) -> bool | int | float:
    try:
        kind, raw = loader.construct_sequence(node, deep=True)
        order = "<" if kind.byte_order == "|" else kind.byte_order
        [number] = struct.unpack(order + _NUMBERS[kind.code], raw)
    except (struct.error, AttributeError, KeyError, TypeError, ValueError) as error:
        raise yaml.constructor.ConstructorError(
            None, None, f"this numpy value is not a plain number ({error})", node.start_mark
        ) from error
    plain: bool | int | float = number
    return plain


for _loader in (_PurePythonLoader, _CompiledLoader):
    _loader.add_constructor(f"{_PYTHON}tuple", _list_of_tuple)
    _loader.add_constructor("tag:yaml.org,2002:timestamp", _text_of_time)
    _loader.add_constructor(f"{_PYTHON}object/apply:numpy.dtype", _number_type)
    for _module in ("numpy.core.multiarray", "numpy._core.multiarray"):
        _loader.add_constructor(f"{_PYTHON}object/apply:{_module}.scalar", _number)
