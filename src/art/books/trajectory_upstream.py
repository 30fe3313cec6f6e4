"""Trajectory files that upstream wrote, brought into rows of our own.

v1 (up to 0.5.18) has the ten columns alone; 0.5.7 wrote them without the three `group_*` ones. v2 (0.5.23)
adds `group_json` and `trajectory_json`, which hold the whole. Both are recognised by their columns.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from art.books.plain_json import exact_text, parse_json
from art.books.trajectory_encoder import encode_rows
from art.books.trajectory_legacy import GROUP_FIELDS, TRAJECTORY_FIELDS
from art.books.trajectory_rows import Row, group_rows, numbers_map
from art.books.trajectory_schema import SCHEMA
from art.trajectories import History, Trajectory, TrajectoryGroup

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

V2_VERSION = 2
_ROWS_PER_TABLE = 512
_V1_REQUIRED = frozenset({"group_index", "reward", "messages"})


def is_v1(columns: Collection[str]) -> bool:
    """Tell whether these are the columns of a v1 file."""
    return set(columns) >= _V1_REQUIRED and not is_v2(columns)


def is_v2(columns: Collection[str]) -> bool:
    """Tell whether these are the columns of a v2 file, or of a later version of it."""
    return "trajectory_json" in columns


def tables_of_upstream(
    batches: Iterable[pa.RecordBatch], columns: Collection[str], stamp: Mapping[str, Any]
) -> Iterator[pa.Table]:
    """Turn the rows of a file of upstream into tables of our schema, as log 0.

    Args:
        batches: The rows.
        columns: The names of their columns.
        stamp: The split and the step of the file, where known.

    Raises:
        ValueError: The columns are of no known format, or a row is of a later version.
    """
    stamp = {**stamp, "log_index": 0}
    rows = itertools.chain.from_iterable(batch.to_pylist() for batch in batches)
    if is_v2(columns):
        yield from encode_rows(_rows_of_v2(rows), stamp)
    elif is_v1(columns):
        converted = _rows_of_v1(rows)
        while some := [{**row, **stamp} for row in itertools.islice(converted, _ROWS_PER_TABLE)]:
            yield pa.Table.from_pylist(some, schema=SCHEMA)
    else:
        raise ValueError(f"its columns are {', '.join(columns) or 'none'}")


def _rows_of_v1(rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Turn rows of a v1 file into ours; the columns that v1 had are kept to the byte."""
    num_trajectories: dict[int, int] = {}
    for row in rows:
        group_index = row["group_index"]
        columns = dict(row)
        is_trajectory = row["messages"] is not None or row["reward"] is not None
        if is_trajectory:
            index = num_trajectories.get(group_index, 0)
            num_trajectories[group_index] = index + 1
            columns["trajectory_index"] = index
            columns["messages"] = [_message_of_v1(struct) for struct in row["messages"] or []]
        if row.get("metrics"):
            columns["metrics_map"] = numbers_map(parse_json(row["metrics"]))
        if row.get("additional_histories"):
            columns |= _histories_of_v1(row["additional_histories"])
        yield columns


def _histories_of_v1(text: str) -> dict[str, Any]:
    # Upstream's migration of JSONL files wrote this column, its logging did not.
    histories = [History(**fields) for fields in parse_json(text)]
    group = TrajectoryGroup([Trajectory(additional_histories=histories)])
    [table] = encode_rows(group_rows(group, 0, "additional_histories"), {})
    [row] = table.to_pylist()
    return {"histories": row["histories"], "extra": row["extra"]}


def _message_of_v1(struct: Mapping[str, Any]) -> dict[str, Any]:
    # v1 does not tell a null content from a missing one; its reader gives null for both.
    absent = {} if struct["content"] is not None else {"content": None}
    extra = {"message": absent} if struct["trainable"] and absent else absent
    return {**struct, "extra": exact_text(extra) if extra else None}


def _rows_of_v2(rows: Iterable[Mapping[str, Any]]) -> Iterator[Row]:
    """Turn rows of a v2 file into ours; fields that we do not know are kept under `extra["upstream"]`.

    Raises:
        ValueError: A row is of a later version, or its JSON has another shape.
    """
    seen: set[int] = set()
    for row in rows:
        if row.get("format_version") != V2_VERSION:
            raise ValueError(
                f"its format version is {row.get('format_version')!r}, not {V2_VERSION}"
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
) -> Iterator[Row]:
    # Exceptions belong to the group and are told once, with its first row.
    known = {key: value for key, value in group.items() if key in GROUP_FIELDS}
    known["exceptions"] = group.get("exceptions", []) if with_exceptions else []
    known["metrics"] = _with_nan(group.get("metrics", {}))
    unknown = {key: value for key, value in group.items() if key not in GROUP_FIELDS}
    trajectories = []
    if trajectory is not None:
        fields = {key: value for key, value in trajectory.items() if key in TRAJECTORY_FIELDS}
        fields["metrics"] = _with_nan(fields.get("metrics", {}))
        if fields.get("reward") is None:
            fields["reward"] = math.nan
        unknown |= {k: v for k, v in trajectory.items() if k not in TRAJECTORY_FIELDS}
        trajectories.append(Trajectory.model_validate(fields))
    name = f"group {row['group_index']}"
    for encoded in group_rows(TrajectoryGroup(trajectories, **known), row["group_index"], name):
        if "trajectory_index" in encoded.columns:
            encoded.columns["trajectory_index"] = row["trajectory_index"]
        if unknown:
            encoded.extra["upstream"] = unknown
        yield encoded


def _with_nan(metrics: Mapping[str, Any] | None) -> dict[str, Any]:
    """Undo what pydantic does to a NaN in its JSON: a number cannot be null."""
    return {key: math.nan if value is None else value for key, value in (metrics or {}).items()}


def _object(text: str) -> dict[str, Any]:
    value = parse_json(text)
    if not isinstance(value, dict):
        raise ValueError(f"it holds {text[:40]!r} where a JSON object belongs")  # noqa: TRY004 - about the file
    return value
