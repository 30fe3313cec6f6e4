"""Trajectory files that upstream wrote, brought into rows of our own.

v1 (up to 0.5.18) has the ten columns alone; 0.5.7 wrote them without the three `group_*` ones. v2 (0.5.23)
adds `group_json` and `trajectory_json`, which hold the whole. Both are recognised by their columns.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from art.books.plain_json import exact_text, parse_exact
from art.books.trajectory_rows import encode_group, numbers_map
from art.trajectories import Trajectory, TrajectoryGroup

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

_V2_VERSION = 2
_V1_REQUIRED = frozenset({"group_index", "reward", "messages"})
_GROUP_FIELDS = frozenset({"exceptions", "metadata", "metrics", "logs"})
_TRAJECTORY_FIELDS = frozenset(Trajectory.model_fields) - {"start_time"}


def is_v1(columns: Collection[str]) -> bool:
    """Tell whether these are the columns of a v1 file."""
    return set(columns) >= _V1_REQUIRED and not is_v2(columns)


def is_v2(columns: Collection[str]) -> bool:
    """Tell whether these are the columns of a v2 file, or of a later version of it."""
    return "trajectory_json" in columns


def rows_of_v1(rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Turn rows of a v1 file into ours; the columns that v1 had are kept to the byte."""
    num_trajectories: dict[int, int] = {}
    for row in rows:
        group_index = row["group_index"]
        columns = dict(row)
        if (
            row["messages"] is not None or row["reward"] is not None
        ):  # else the row tells of no trajectory
            index = num_trajectories.get(group_index, 0)
            num_trajectories[group_index] = index + 1
            columns["trajectory_index"] = index
            columns["messages"] = [_message_of_v1(struct) for struct in row["messages"] or []]
        if row.get("metrics"):
            columns["metrics_map"] = numbers_map(json.loads(row["metrics"]))
        yield columns


def _message_of_v1(struct: Mapping[str, Any]) -> dict[str, Any]:
    # v1 does not tell a null content from a missing one; its reader gives null for both.
    absent = {} if struct["content"] is not None else {"content": None}
    extra = {"message": absent} if struct["trainable"] and absent else absent
    return {**struct, "extra": exact_text(extra) if extra else None}


def rows_of_v2(rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Turn rows of a v2 file into ours; fields that we do not know are kept under `extra["upstream"]`.

    Raises:
        ValueError: A row is of a later version, or its JSON has another shape.
    """
    seen: set[int] = set()
    for row in rows:
        if row.get("format_version") != _V2_VERSION:
            raise ValueError(
                f"its format version is {row.get('format_version')!r}, not {_V2_VERSION}"
            )
        group = _object(row["group_json"])
        first_of_group = row["group_index"] not in seen
        seen.add(row["group_index"])
        trajectory = _object(row["trajectory_json"]) if row["trajectory_json"] else None
        yield from _rows_of_v2_row(row, group, trajectory, with_exceptions=first_of_group)


def _rows_of_v2_row(
    row: Mapping[str, Any],
    group: dict[str, Any],
    trajectory: dict[str, Any] | None,
    *,
    with_exceptions: bool,
) -> Iterator[dict[str, Any]]:
    # Exceptions belong to the group and are told once, with its first row.
    known = {key: value for key, value in group.items() if key in _GROUP_FIELDS}
    known["exceptions"] = group.get("exceptions", []) if with_exceptions else []
    known["metrics"] = _with_nan(group.get("metrics", {}))
    unknown = {key: value for key, value in group.items() if key not in _GROUP_FIELDS}
    trajectories = []
    if trajectory is not None:
        fields = {key: value for key, value in trajectory.items() if key in _TRAJECTORY_FIELDS}
        fields["metrics"] = _with_nan(fields.get("metrics", {}))
        if fields.get("reward") is None:
            fields["reward"] = math.nan
        unknown |= {k: v for k, v in trajectory.items() if k not in _TRAJECTORY_FIELDS}
        trajectories.append(Trajectory.model_validate(fields))
    name = f"group {row['group_index']}"
    for encoded in encode_group(TrajectoryGroup(trajectories, **known), row["group_index"], name):
        if encoded.get("trajectory_index") is not None:
            encoded["trajectory_index"] = row["trajectory_index"]
        if unknown:
            extra = parse_exact(encoded["extra"]) if encoded["extra"] else {}
            encoded["extra"] = exact_text({**extra, "upstream": unknown})
        yield encoded


def _with_nan(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Undo what pydantic does to a NaN in its JSON: a number cannot be null."""
    return {key: math.nan if value is None else value for key, value in metrics.items()}


def _object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"it holds {text[:40]!r} where a JSON object belongs")  # noqa: TRY004 - about the file
    return value
