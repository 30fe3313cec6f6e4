"""Whether two lists of groups say the same, as strictly as the types can tell values apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pydantic

from art.books.plain_json import NotPlainError, plain_scalar, written_fields
from art.messages import is_choice, normalise_item

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from art.trajectories import History, Trajectory, TrajectoryGroup
    from art.types import MessagesAndChoices

_SIMPLE = frozenset({str, int, bool, type(None)})  # equal exactly when Python says so


def same_groups(a: Sequence[TrajectoryGroup], b: Sequence[TrajectoryGroup]) -> bool:
    """Tell whether two lists of groups hold the same, in the same order.

    NaN equals NaN. An int differs from a float and from a bool of the same value, None from a missing key.
    A Choice differs from a message dict; two Choices are compared by all their fields, extras included. A
    numpy scalar equals the number it holds, a tuple the list, and a provider's object in a message the dict
    of its fields. `start_time`, and whether a field was set or left at its default, do not count.
    """
    return same_values([_group(group) for group in a], [_group(group) for group in b])


def same_items(a: MessagesAndChoices, b: MessagesAndChoices) -> bool:
    """Tell whether two conversations hold the same messages and Choices; see `same_groups`."""
    return same_values(_items(a), _items(b))


def _group(group: TrajectoryGroup) -> dict[str, Any]:
    return {
        "trajectories": [_trajectory(trajectory) for trajectory in group.trajectories],
        "exceptions": [dict(error) for error in group.exceptions],
        "metadata": group.metadata,
        "metrics": group.metrics,
        "logs": group.logs,
    }


def _trajectory(trajectory: Trajectory) -> dict[str, Any]:
    fields = {name: value for name, value in trajectory if name != "start_time"}
    fields["reward"] = float(trajectory.reward)
    fields["additional_histories"] = [
        _history(history) for history in trajectory.additional_histories
    ]
    return {**fields, **_history(trajectory)}


def _history(history: Trajectory | History) -> dict[str, Any]:
    return {"messages_and_choices": _items(history.messages_and_choices), "tools": history.tools}


def _items(items: MessagesAndChoices) -> list[Any]:
    normalised = [normalise_item(item, "the item") for item in items]
    return [{"item": item, "is_choice": is_choice(item)} for item in normalised]


def same_values(a: object, b: object) -> bool:
    """Tell whether two values, as metadata or a message may hold them, are the same; see `same_groups`."""
    # A worklist, not recursion: values may be nested deeper than the stack.
    pairs: list[tuple[Any, Any]] = [(a, b)]
    # Holds the pairs, so that no id is used again.
    compared: dict[tuple[int, int], tuple[Any, Any]] = {}
    while pairs:
        x, y = pairs.pop()
        if type(x) in _SIMPLE and type(x) is type(y):
            if x != y:
                return False
        elif (id(x), id(y)) not in compared:
            parts = _parts(x, y)
            if parts is None:
                return False
            if isinstance(x, (dict, list, tuple)):
                compared[id(x), id(y)] = (x, y)
            pairs.extend(parts)
    return True


def _parts(a: object, b: object) -> Iterator[tuple[Any, Any]] | None:
    """Return what is left to compare of two values; None if they differ already."""
    if isinstance(a, pydantic.BaseModel) and isinstance(b, pydantic.BaseModel):
        return _parts_of_models(a, b)
    a, b = _without_model(a), _without_model(b)
    if isinstance(a, dict) and isinstance(b, dict):
        return ((a[key], b[key]) for key in a) if a.keys() == b.keys() else None
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return zip(a, b, strict=True) if len(a) == len(b) else None
    return iter(()) if _same_scalars(a, b) else None


def _parts_of_models(
    a: pydantic.BaseModel, b: pydantic.BaseModel
) -> Iterator[tuple[Any, Any]] | None:
    ours, theirs = dict(a), dict(b)
    for model, name in [(a, n) for n in ours.keys() - theirs] + [
        (b, n) for n in theirs.keys() - ours
    ]:
        if name in written_fields(model):
            return None
    return ((ours[name], theirs[name]) for name in ours.keys() & theirs.keys())


def _without_model(value: object) -> object:
    return written_fields(value) if isinstance(value, pydantic.BaseModel) else value


def _same_scalars(a: object, b: object) -> bool:
    try:
        a, b = plain_scalar(a), plain_scalar(b)
    except NotPlainError:
        return type(a) is type(b) and bool(a == b)  # no JSON: nothing that could have been stored
    if type(a) is not type(b):
        return False
    return a == b or (a != a and b != b)  # noqa: PLR0124 - NaN alone differs from itself
