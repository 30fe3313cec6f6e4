"""Copies of pydantic models, made by the hundred thousand."""

from __future__ import annotations

from typing import Any, TypeVar

import pydantic

M = TypeVar("M", bound=pydantic.BaseModel)

_new = object.__new__
# The slots of every model, set past the models' own `__setattr__`, which is for their fields.
_slots = vars(pydantic.BaseModel)
_set_fields = _slots["__dict__"].__set__
_set_names = _slots["__pydantic_fields_set__"].__set__
_set_extras = _slots["__pydantic_extra__"].__set__
_set_private = _slots["__pydantic_private__"].__set__


def copy_with(pattern: M, values: dict[str, Any]) -> M:
    """Return `pattern.model_copy(update=values)` in less than half the time.

    Args:
        pattern: What is copied, but not its values; a model without private attributes.
        values: Fields that it has, with values that validation would keep as they are.
    """
    model = _new(type(pattern))
    _set_fields(model, {**pattern.__dict__, **values})
    _set_names(model, pattern.__pydantic_fields_set__.copy())
    extras = pattern.__pydantic_extra__
    _set_extras(model, None if extras is None else extras.copy())
    _set_private(model, None)
    return model
