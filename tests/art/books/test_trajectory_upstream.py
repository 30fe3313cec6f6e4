from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import art
from art.books.trajectory_file import append_groups, read_groups, read_logs
from art.books.trajectory_schema import SCHEMA, UPSTREAM_COLUMNS
from art.equality import same_groups
from art.errors import LogError
from art.messages import is_choice
from art.trajectories import History, PydanticException

if TYPE_CHECKING:
    from pathlib import Path

V1_MESSAGE = pa.struct(
    [
        ("role", pa.string()),
        ("content", pa.string()),
        ("tool_calls", pa.string()),
        ("tool_call_id", pa.string()),
        ("trainable", pa.bool_()),
    ]
)
V1_FIELDS = [
    ("group_index", pa.int64()),
    ("group_metadata", pa.string()),
    ("group_metrics", pa.string()),
    ("group_logs", pa.list_(pa.string())),
    ("reward", pa.float64()),
    ("metrics", pa.string()),
    ("metadata", pa.string()),
    ("tools", pa.string()),
    ("logs", pa.list_(pa.string())),
    ("messages", pa.list_(V1_MESSAGE)),
]
V2_SCHEMA = pa.schema(
    [
        ("format_version", pa.int16()),
        ("group_index", pa.int64()),
        ("trajectory_index", pa.int64()),
        ("group_json", pa.large_string()),
        ("trajectory_json", pa.large_string()),
        *V1_FIELDS[1:],
    ],
    metadata={b"art.trajectory_parquet.version": b"2"},
)

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": "\ud83d'}}
CHOICE = {
    "finish_reason": "length",
    "index": 0,
    "logprobs": {
        "content": [{"token": "a", "bytes": None, "logprob": -0.25, "top_logprobs": []}],
        "refusal": None,
    },
    "message": {"role": "assistant", "content": "a", "refusal": None, "tool_calls": None},
    "token_ids": [4],
}


def v1_message(role: str, content: str | None, **fields: Any) -> dict[str, Any]:
    empty = {"tool_calls": None, "tool_call_id": None, "trainable": role == "assistant"}
    return {"role": role, "content": content, **empty, **fields}


def v1_rows() -> list[dict[str, Any]]:
    called = v1_message("assistant", None, tool_calls=json.dumps([CALL]))
    answered = v1_message("tool", "\x00", tool_call_id="c1")
    first = {
        "group_index": 0,
        "group_metadata": '{"task": "\\u00e9"}',
        "group_metrics": '{"judge": 0.5}',
        "group_logs": ["g"],
        "reward": 0.5,
        "metrics": '{"turns": 2, "won": true}',
        "metadata": '{"nested": {}}',
        "tools": '[{"type": "function"}]',
        "logs": ["line"],
        "messages": [v1_message("user", "q"), called, answered, v1_message("assistant", "a")],
    }
    second = {"group_index": 0, "reward": 1.0, "messages": []}
    third = {"group_index": 1, "reward": -1.0, "messages": [v1_message("user", "r")]}
    return [first, second, third]


def write(path: Path, rows: list[dict[str, Any]], schema: pa.Schema) -> None:
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path, compression="zstd")


def test_a_v1_file_is_read_whole(tmp_path: Path) -> None:
    """Everything that v1 stored is there, tools included; trainable turns are Choices."""
    path = tmp_path / "0001.parquet"
    write(path, v1_rows(), pa.schema(V1_FIELDS))

    first, second = read_groups(path)

    assert (first.metadata, first.metrics, first.logs) == ({"task": "é"}, {"judge": 0.5}, ["g"])
    assert [t.reward for t in first] == [0.5, 1.0]
    assert [t.reward for t in second] == [-1.0]
    trajectory = first.trajectories[0]
    assert trajectory.metrics == {"turns": 2, "won": True}
    assert trajectory.metadata == {"nested": {}}
    assert json.dumps(trajectory.tools) == '[{"type": "function"}]'
    assert trajectory.logs == ["line"]
    question, call, answer, reply = trajectory.messages_and_choices
    assert question == {"role": "user", "content": "q"}
    assert answer == {"role": "tool", "content": "\x00", "tool_call_id": "c1"}
    assert is_choice(call)
    assert is_choice(reply)
    assert call.message.content is None
    assert call.message.tool_calls is not None
    assert call.message.tool_calls[0].model_dump() == CALL
    assert reply.message.content == "a"


def test_a_null_content_of_v1_is_a_null_content(tmp_path: Path) -> None:
    """Upstream's reader gives None, so scripts that index the key keep working."""
    path = tmp_path / "0001.parquet"
    rows = [{"group_index": 0, "reward": 0.0, "messages": [v1_message("user", None)]}]
    write(path, rows, pa.schema(V1_FIELDS))

    [group] = read_groups(path)

    assert group.trajectories[0].messages_and_choices == [{"role": "user", "content": None}]


def test_a_v1_file_without_group_columns_is_read(tmp_path: Path) -> None:
    """Version 0.5.7 had no columns for what belongs to the group."""
    path = tmp_path / "0001.parquet"
    fields = [field for field in V1_FIELDS if field[0] not in UPSTREAM_COLUMNS[1:4]]
    write(path, v1_rows(), pa.schema(fields))

    first, second = read_groups(path)

    assert (len(first), len(second)) == (2, 1)
    assert (first.metadata, first.metrics, first.logs) == ({}, {}, [])


def test_an_empty_v1_file_holds_no_groups(tmp_path: Path) -> None:
    """Upstream writes a file without rows for a step without trajectories."""
    path = tmp_path / "0001.parquet"
    write(path, [], pa.schema(V1_FIELDS))

    assert read_groups(path) == []
    assert append_groups(path, [art.TrajectoryGroup([])], split="train", step=1) == 0


def test_appending_to_a_v1_file_keeps_its_columns_to_the_byte(tmp_path: Path) -> None:
    """Its rows become log 0 of a file in the present format; what they say does not change."""
    path = tmp_path / "0001.parquet"
    write(path, v1_rows(), pa.schema(V1_FIELDS))
    before = read_groups(path)
    columns = UPSTREAM_COLUMNS[:-1]
    old = pq.read_table(path).select(columns).to_pylist()

    log_index = append_groups(
        path, [art.TrajectoryGroup([art.Trajectory(reward=3.0)])], split="train", step=1
    )

    table = pq.read_table(path)
    assert log_index == 1
    assert table.schema.equals(SCHEMA)
    assert table.select(columns).to_pylist()[:3] == old
    assert table["trajectory_index"].to_pylist() == [0, 1, 0, 0]
    assert table["group_index"].to_pylist() == [0, 0, 1, 2]
    assert set(table["split"].to_pylist()) == {"train"}
    assert same_groups(read_logs(path)[0], before)
    assert same_groups(read_logs(path)[1], [art.TrajectoryGroup([art.Trajectory(reward=3.0)])])


def v2_row(
    group_index: int, trajectory_index: int | None, group: Any, trajectory: Any
) -> dict[str, Any]:
    def text(value: Any) -> str | None:
        return (
            None if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        )

    return {
        "format_version": 2,
        "group_index": group_index,
        "trajectory_index": trajectory_index,
        "group_json": text(group),
        "trajectory_json": text(trajectory),
        "reward": None if trajectory is None else trajectory["reward"],
    }


def v2_rows() -> list[dict[str, Any]]:
    error = {"type": "E", "message": "m", "traceback": "t"}
    failed = {
        "exceptions": [error],
        "metadata": {"task": 1},
        "metrics": {"judge": None},
        "logs": ["g"],
    }
    empty: dict[str, Any] = {"exceptions": [], "metadata": {}, "metrics": {}, "logs": []}
    trajectory = {
        "messages_and_choices": [
            {"role": "user", "content": [{"type": "text", "text": "q"}]},
            CHOICE,
        ],
        "tools": None,
        "additional_histories": [{"messages_and_choices": [CHOICE], "tools": []}],
        "reward": 1.0,
        "initial_policy_version": 3,
        "final_policy_version": None,
        "metrics": {"turns": 2},
        "auto_metrics": {},
        "metadata": {"nested": {"x": None}},
        "logs": [],
    }
    bare = {"reward": None, "exchanges": {"chat_completions": [{"id": "x"}]}}
    return [
        v2_row(0, 1, failed, bare),
        v2_row(0, 0, failed, trajectory),
        v2_row(1, None, empty, None),
        v2_row(2, None, {**empty, "exceptions": [error, error]}, None),
    ]


def v2_groups() -> list[art.TrajectoryGroup]:
    error = PydanticException(type="E", message="m", traceback="t")
    message: Any = {"role": "user", "content": [{"type": "text", "text": "q"}]}
    choice: Any = CHOICE
    trajectory = art.Trajectory(
        messages_and_choices=[message, choice],
        additional_histories=[History(messages_and_choices=[choice], tools=[])],
        reward=1.0,
        initial_policy_version=3,
        metrics={"turns": 2},
        metadata={"nested": {"x": None}},
    )
    first = art.TrajectoryGroup(
        [trajectory, art.Trajectory(reward=math.nan)],
        exceptions=[error],
        metadata={"task": 1},
        metrics={"judge": math.nan},
        logs=["g"],
    )
    return [first, art.TrajectoryGroup([]), art.TrajectoryGroup([], exceptions=[error, error])]


def test_a_v2_file_is_read_whole(tmp_path: Path) -> None:
    """Choices, exceptions, empty groups and further histories are there, in order of their indices."""
    path = tmp_path / "0001.parquet"
    write(path, v2_rows(), V2_SCHEMA)

    assert same_groups(read_groups(path), v2_groups())


def test_appending_to_a_v2_file_loses_nothing(tmp_path: Path) -> None:
    """Its groups become log 0; fields that have no place here are kept in `extra`."""
    path = tmp_path / "0001.parquet"
    write(path, v2_rows(), V2_SCHEMA)

    assert append_groups(path, v2_groups(), split="val", step=1) == 1

    logs = read_logs(path)
    assert same_groups(logs[0], v2_groups())
    assert same_groups(logs[1], v2_groups())
    assert "chat_completions" in pq.read_table(path)["extra"].to_pylist()[0]
    assert append_groups(path, [], split="val", step=1) == 2
    assert "chat_completions" in pq.read_table(path)["extra"].to_pylist()[0]


def test_a_later_version_is_not_guessed_at(tmp_path: Path) -> None:
    """A file of an unknown version is refused, not read in part."""
    path = tmp_path / "0001.parquet"
    write(path, [{**row, "format_version": 3} for row in v2_rows()], V2_SCHEMA)

    with pytest.raises(LogError, match="format version is 3"):
        read_groups(path)
