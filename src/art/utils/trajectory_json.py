"""Groups, trajectories and messages as plain JSON values and back, by upstream's names.

What these functions return has upstream's form, and lacks nothing of what most of its releases left out: logprobs,
the fields of a group, tools, further histories.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from art.books.plain_json import NotPlainError, plain
from art.errors import ArtError, InvalidTrajectoriesError
from art.messages import normalise_item

if TYPE_CHECKING:
    from collections.abc import Callable

    from art.trajectories import History, Trajectory, TrajectoryGroup
    from art.types import MessageOrChoice


def serialize_trajectory_groups(trajectory_groups: list[TrajectoryGroup]) -> str:
    """Return groups as JSONL, one a line.

    Raises:
        InvalidTrajectoriesError: A value has no JSON form.
    """
    return "\n".join(json.dumps(trajectory_group_to_dict(group)) for group in trajectory_groups)


def trajectory_group_to_dict(trajectory_group: TrajectoryGroup) -> dict[str, Any]:
    """Return a group as plain JSON values.

    Raises:
        InvalidTrajectoriesError: A value has no JSON form.
    """
    return {
        "trajectories": [trajectory_to_dict(item) for item in trajectory_group.trajectories],
        "exceptions": [dict(error) for error in trajectory_group.exceptions],
        **_plain_fields(trajectory_group, "metadata", "metrics", "logs"),
    }


def trajectory_to_dict(trajectory: Trajectory) -> dict[str, Any]:
    """Return a trajectory as plain JSON values.

    Raises:
        InvalidTrajectoriesError: A value has no JSON form.
    """
    return {
        **_plain_fields(trajectory, "reward", "metrics", "metadata"),
        **history_to_dict(trajectory),
        "additional_histories": [history_to_dict(item) for item in trajectory.additional_histories],
        **_plain_fields(
            trajectory, "logs", "auto_metrics", "initial_policy_version", "final_policy_version"
        ),
    }


def history_to_dict(history: History | Trajectory) -> dict[str, Any]:
    """Return messages and tools as plain JSON values.

    Raises:
        InvalidTrajectoriesError: A value has no JSON form.
    """
    items = [message_or_choice_to_dict(item) for item in history.messages_and_choices]
    return {"messages_and_choices": items, **_plain_fields(history, "tools")}


def message_or_choice_to_dict(message_or_choice: MessageOrChoice) -> dict[str, Any]:
    """Return a message or a Choice as plain JSON values; `dict_to_message_or_choice` reverses it.

    Raises:
        InvalidTrajectoriesError: A value has no JSON form.
        TypeError: The item is neither.
    """
    fields: dict[str, Any] = _plain("the item", normalise_item(message_or_choice, "the item"))
    return fields


def _plain_fields(model: Trajectory | TrajectoryGroup | History, *names: str) -> dict[str, Any]:
    return {name: _plain(name, getattr(model, name)) for name in names}


def _plain(name: str, value: object) -> Any:
    try:
        return plain(value, models=True)
    except NotPlainError as error:
        raise InvalidTrajectoriesError(f"{name} {error}") from error


# --- JSON to groups ---


def deserialize_trajectory_groups(serialized: str) -> list[TrajectoryGroup]:
    """Read groups from JSONL, or from upstream's older YAML.

    Raises:
        InvalidTrajectoriesError: The text is neither.
        MissingDependencyError: It is YAML and pyyaml (the extra `migrate`) is not installed.
    """
    from art.books.trajectory_legacy import groups_of, parse_groups

    return _valid(lambda: groups_of(parse_groups(serialized)))


def dict_to_trajectory_group(d: dict[str, Any]) -> TrajectoryGroup:
    """Build a group from what `trajectory_group_to_dict` returns, of any version.

    Raises:
        InvalidTrajectoriesError: It is of another shape.
    """
    from art.books.trajectory_legacy import document_of, groups_of

    [group] = _valid(lambda: groups_of([document_of(d)]))
    return group


def dict_to_trajectory(d: dict[str, Any]) -> Trajectory:
    """Build a trajectory from what `trajectory_to_dict` returns, of any version.

    Raises:
        InvalidTrajectoriesError: It is of another shape.
    """
    [trajectory] = dict_to_trajectory_group({"trajectories": [d]}).trajectories
    return trajectory


def dict_to_history(d: dict[str, Any]) -> History:
    """Build a History from what `history_to_dict` returns.

    Raises:
        InvalidTrajectoriesError: It is of another shape.
    """
    [history] = dict_to_trajectory({"reward": 0, "additional_histories": [d]}).additional_histories
    return history


def dict_to_message_or_choice(d: dict[str, Any]) -> MessageOrChoice:
    """Return a Choice where the dict is shaped like one, else the dict itself.

    Raises:
        TypeError: It is no dict.
    """
    return normalise_item(d, "the item")


def _valid(build: Callable[[], list[TrajectoryGroup]]) -> list[TrajectoryGroup]:
    try:
        return build()
    except ArtError:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidTrajectoriesError(f"this holds no trajectory groups: {error}") from error
