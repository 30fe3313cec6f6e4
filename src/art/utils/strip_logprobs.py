"""Leave out logprobs, the largest part of a trajectory, before it is stored or shown elsewhere."""

from __future__ import annotations

import copy
from typing import Any

import pydantic


def strip_logprobs(obj: Any) -> Any:
    """Return a copy of nested data without its logprobs; the original is not touched.

    Keys `logprobs` of dicts are left out, attributes `logprobs` of objects become None.
    """
    if isinstance(obj, dict):
        return {key: strip_logprobs(value) for key, value in obj.items() if key != "logprobs"}
    if isinstance(obj, (list, tuple)):
        items = [strip_logprobs(item) for item in obj]
        return items if isinstance(obj, list) else tuple(items)
    if isinstance(obj, type) or not hasattr(obj, "__dict__"):
        return obj
    clone = copy.copy(obj)
    _strip_fields(vars(clone))
    if isinstance(clone, pydantic.BaseModel) and clone.model_extra:
        _strip_fields(clone.model_extra)  # copied by pydantic's own copy
    return clone


def _strip_fields(fields: dict[str, Any]) -> None:
    for name, value in fields.items():
        fields[name] = None if name == "logprobs" else strip_logprobs(value)
