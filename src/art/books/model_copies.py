"""Copies of pydantic models, made by the hundred thousand."""

from __future__ import annotations

from typing import Any, TypeVar

import pydantic

M = TypeVar("M", bound=pydantic.BaseModel)

_new = object.__new__
_set = object.__setattr__  # the models' own is for their fields


def copy_with(pattern: M, values: dict[str, Any]) -> M:
    """Return `pattern.model_copy(update=values)` in less than half the time.

    Args:
        pattern: What is copied, but not its values; a model without private attributes.
        values: Fields that it has, with values that validation would keep as they are.
    """
    model = _new(type(pattern))
    _set(model, "__dict__", {**pattern.__dict__, **values})
    _set(model, "__pydantic_fields_set__", pattern.__pydantic_fields_set__.copy())
    extras = pattern.__pydantic_extra__
    _set(model, "__pydantic_extra__", None if extras is None else extras.copy())
    _set(model, "__pydantic_private__", None)
    return model
