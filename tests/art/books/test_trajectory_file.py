from __future__ import annotations

import json
import logging
import math
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings

import art
from art.adapter_kit.sequences import trajectory_sequences
from art.books import trajectory_encoder, trajectory_file
from art.books.trajectory_file import append_groups, read_groups, read_logs, write_groups
from art.books.trajectory_schema import SCHEMA
from art.equality import same_groups
from art.errors import InvalidTrajectoriesError, LogError
from art.messages import choice_from_dict
from art.trajectories import History, PydanticException
from art.utils.trajectory_logging import (
    read_trajectory_groups_parquet,
    write_trajectory_groups_parquet,
)
from tests.strategies import group_lists

EMPTY = art.TrajectoryGroup([])


def conversation(reply: str = "a", **fields: Any) -> list[Any]:
    choice = {
        "finish_reason": "stop",
        "index": 0,
        "message": {"role": "assistant", "content": reply},
        **fields,
    }
    return [{"role": "user", "content": "q"}, choice_from_dict(choice)]


def group(*rewards: float, **fields: Any) -> art.TrajectoryGroup:
    trajectories = [
        art.Trajectory(messages_and_choices=conversation(), reward=reward, metrics={"turns": 1})
        for reward in rewards
    ]
    return art.TrajectoryGroup(trajectories, **fields)


def round_trip(path: Path, groups: list[art.TrajectoryGroup]) -> list[art.TrajectoryGroup]:
    append_groups(path, groups, split="train", step=1)
    return read_groups(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trajectories" / "train" / "0001.parquet"


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(group_lists)
def test_any_groups_survive_and_give_the_same_bytes_again(
    groups: list[art.TrajectoryGroup],
) -> None:
    """Reading gives back what was written, and writing that again the same file to the byte."""
    with tempfile.TemporaryDirectory() as directory:
        first, second = Path(directory) / "1.parquet", Path(directory) / "2.parquet"
        append_groups(first, groups, split="train", step=1)

        read = read_groups(first)
        append_groups(second, read, split="train", step=1)

        assert same_groups(read, groups)
        assert first.read_bytes() == second.read_bytes()


def test_the_first_ten_columns_are_upstreams(path: Path) -> None:
    """Name, type and order are unchanged, and the first five fields of a message too."""
    append_groups(path, [group(1.0)], split="train", step=1)

    schema = pq.read_schema(path)
    names = "group_index group_metadata group_metrics group_logs reward metrics metadata tools logs messages"
    types = ["int64", "string", "string", None, "double", "string", "string", "string", None, None]
    assert schema.names[:10] == names.split()
    for field, expected in zip(schema, types, strict=False):
        assert expected is None or str(field.type) == expected
    assert schema.field("group_logs").type == pa.list_(pa.string())
    message = schema.field("messages").type.value_type
    assert [(message[i].name, str(message[i].type)) for i in range(5)] == [
        ("role", "string"),
        ("content", "string"),
        ("tool_calls", "string"),
        ("tool_call_id", "string"),
        ("trainable", "bool"),
    ]
    assert pq.ParquetFile(path).metadata.row_group(0).column(0).compression == "ZSTD"


def test_duckdb_reads_the_ten_columns_with_upstreams_query(path: Path) -> None:
    """What upstream's reader takes from a row is there: JSON or null, messages, rewards."""
    tools: Any = [{"type": "function"}]
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}
    called = conversation("")[1]
    called.message.tool_calls = [call]
    trajectory = art.Trajectory(
        messages_and_choices=[
            *conversation(),
            called,
            {"role": "tool", "tool_call_id": "c", "content": "r"},
        ],
        reward=0.5,
        tools=tools,
        metrics={"turns": 2},
        metadata={"task": "é"},
        logs=["line"],
    )
    first = art.TrajectoryGroup([trajectory], metadata={"g": 1}, metrics={"judge": 0.5}, logs=["g"])
    append_groups(path, [first, group(1.0), EMPTY], split="train", step=1)

    query = f"SELECT * FROM '{path}' ORDER BY group_index"
    with duckdb.connect() as connection:
        result = connection.execute(query)
        names = [column[0] for column in result.description]
        row, plain_row, empty_row = (dict(zip(names, r, strict=True)) for r in result.fetchall())

    assert json.loads(row["group_metadata"]) == {"g": 1}
    assert json.loads(row["group_metrics"]) == {"judge": 0.5}
    assert json.loads(row["metadata"]) == {"task": "é"}
    assert json.loads(row["metrics"]) == {"turns": 2}
    assert json.loads(row["tools"]) == tools
    assert (row["group_logs"], row["logs"], row["reward"]) == (["g"], ["line"], 0.5)
    assert [m["role"] for m in row["messages"]] == ["user", "assistant", "assistant", "tool"]
    assert [m["trainable"] for m in row["messages"]] == [False, True, True, False]
    assert json.loads(row["messages"][2]["tool_calls"]) == [call]
    assert row["messages"][3]["tool_call_id"] == "c"
    for column in ("group_metadata", "group_metrics", "group_logs", "metadata", "tools", "logs"):
        assert plain_row[column] is None
    assert (empty_row["reward"], empty_row["messages"]) == (None, None)


def test_duckdb_and_polars_query_the_additions(path: Path) -> None:
    """Tool calls, metrics and logprobs can be asked for without parsing JSON."""
    entries = [{"token": "a", "logprob": -0.5, "bytes": None, "top_logprobs": []}]
    messages = conversation(token_ids=[1], logprobs={"content": entries})
    trajectory = art.Trajectory(messages_and_choices=messages, reward=0.5, metrics={"turns": 2})
    append_groups(path, [art.TrajectoryGroup([trajectory])], split="val", step=7)

    with duckdb.connect() as connection:
        turns = "map_from_entries(metrics_map)['turns']"
        query = f"SELECT split, step, {turns}, messages[2].logprobs[1] FROM '{path}'"
        assert connection.execute(query).fetchall() == [("val", 7, 2.0, -0.5)]
    frame = pl.read_parquet(path)
    assert frame["reward"].to_list() == [0.5]
    assert frame["metrics_map"].to_list() == [[{"key": "turns", "value": 2.0}]]
    assert frame["messages"][0].struct.field("token_ids").to_list() == [None, [1]]


def test_logging_a_step_again_adds_with_the_next_log_index(path: Path) -> None:
    """Nothing is replaced; groups are numbered on, so that readers which know no log keep them apart."""
    assert append_groups(path, [group(1.0, 2.0), EMPTY], split="train", step=1) == 0
    assert append_groups(path, [group(3.0)], split="train", step=1) == 1
    assert append_groups(path, [group(4.0)], split="train", step=1) == 2

    logs = read_logs(path)
    assert list(logs) == [0, 1, 2]
    assert same_groups(logs[0], [group(1.0, 2.0), EMPTY])
    assert same_groups(logs[1], [group(3.0)])
    assert same_groups(read_groups(path), [group(1.0, 2.0), EMPTY, group(3.0), group(4.0)])
    assert pq.read_table(path)["group_index"].to_pylist() == [0, 0, 1, 2, 3]


def test_a_file_without_rows_has_no_log_yet(path: Path) -> None:
    """The first groups in it are log 0, numbered from 0."""
    path.parent.mkdir(parents=True)
    pq.write_table(SCHEMA.empty_table(), path)

    assert append_groups(path, [group(1.0)], split="train", step=1) == 0
    assert pq.read_table(path)["group_index"].to_pylist() == [0]


def test_rows_are_written_in_bounded_groups(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row group ends after so many rows, or so much text, whichever comes first."""
    append_groups(path, [group(*range(700))], split="train", step=1)
    metadata = pq.ParquetFile(path).metadata
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [512, 188]

    monkeypatch.setattr(trajectory_encoder, "_CHARACTERS_PER_TABLE", 1000)
    monkeypatch.setattr(trajectory_file, "_BYTES_PER_GROUP", 1000)
    long = art.Trajectory(messages_and_choices=conversation("x" * 600))
    write_groups(path, [art.TrajectoryGroup([long] * 5)])
    metadata = pq.ParquetFile(path).metadata
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [2, 2, 1]


@pytest.mark.skipif(sys.platform == "darwin", reason="file names are UTF-8 there")
def test_a_path_that_is_not_utf_8_is_written_and_read(tmp_path: Path) -> None:
    """A name is what the file system says it is."""
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.parquet"))
    round_trip(path, [group(1.0)])

    assert len(round_trip(path, [group(2.0)])) == 2


def test_no_file_is_left_open(path: Path) -> None:
    """Neither writing, adding, nor reading a file, sound or not, keeps a descriptor of it."""
    descriptors = Path("/dev/fd")
    round_trip(path, [group(1.0)])
    broken = path.with_name("broken.parquet")
    broken.write_bytes(b"PAR1")
    before = len(list(descriptors.iterdir()))
    round_trip(path.with_name("new.parquet"), [group(1.0)])
    round_trip(path, [group(2.0)])
    with pytest.raises(LogError):
        read_groups(broken)
    with pytest.raises(InvalidTrajectoriesError):
        append_groups(path, [group(1.0, metadata={"a": object()})], split="train", step=1)

    assert len(list(descriptors.iterdir())) == before


def test_exceptions_and_empty_groups_survive_in_order(path: Path) -> None:
    """A group may hold trajectories and exceptions, exceptions alone, or nothing."""
    errors = [PydanticException(type="E", message=str(i), traceback="") for i in range(3)]
    groups = [
        art.TrajectoryGroup([], exceptions=errors),
        EMPTY,
        art.TrajectoryGroup([art.Trajectory()], exceptions=errors[:1], metadata={"a": 1}),
        art.TrajectoryGroup([], metadata={"only": "metadata"}),
    ]

    assert same_groups(round_trip(path, groups), groups)
    table = pq.read_table(path)
    assert table["trajectory_index"].to_pylist() == [None, None, None, None, 0, None, None]
    assert table["exception"].to_pylist()[5] == {"type": "E", "message": "0", "traceback": ""}


def test_rows_in_another_order_give_the_same_groups(path: Path) -> None:
    """A file that another program sorted or rewrote reads the same, and can be added to."""
    groups = [group(1.0, 2.0, 3.0), group(4.0)]
    append_groups(path, groups, split="train", step=1)
    table = pq.read_table(path)
    pq.write_table(table.take([3, 2, 0, 1]).replace_schema_metadata(None), path)

    assert same_groups(read_groups(path), groups)
    pl.read_parquet(path).write_parquet(path)
    assert append_groups(path, [EMPTY], split="train", step=1) == 1
    assert same_groups(read_groups(path), [*groups, EMPTY])


@pytest.mark.parametrize(
    "content", [b"", b"PAR1", b"not parquet at all", None, "other columns", "odd metrics", "later"]
)
def test_an_unreadable_file_is_moved_aside_never_deleted(
    path: Path, caplog: pytest.LogCaptureFixture, content: bytes | str | None
) -> None:
    """A torn file, or one of another kind, keeps its bytes beside the new file; one warning says so."""
    append_groups(path, [group(*range(20))], split="train", step=1)
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is None:
        whole = path.read_bytes()
        path.write_bytes(b"\xff" * (len(whole) // 2) + whole[len(whole) // 2 :])
    elif content == "other columns":
        pq.write_table(pa.table({"a": [1]}), path)
    elif content == "odd metrics":
        row = {"group_index": 0, "reward": 1.0, "messages": [], "metrics": "[1]"}
        pq.write_table(pa.Table.from_pylist([row]), path)
    else:
        table = pq.read_table(path)
        pq.write_table(table.append_column("of_a_later_version", pa.nulls(len(table))), path)
    before = path.read_bytes()
    taken = path.with_name("0001.parquet.unreadable-1")
    taken.write_bytes(b"from an earlier time")

    with caplog.at_level(logging.WARNING):
        assert append_groups(path, [group(1.0)], split="train", step=1) == 0

    assert same_groups(read_groups(path), [group(1.0)])
    assert path.with_name("0001.parquet.unreadable-2").read_bytes() == before
    assert taken.read_bytes() == b"from an earlier time"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "unreadable-2" in caplog.text


def test_reading_an_unreadable_or_missing_file_says_so(path: Path) -> None:
    """The error names the file."""
    with pytest.raises(FileNotFoundError):
        read_groups(path)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"PAR1")
    with pytest.raises(LogError, match=r"0001\.parquet cannot be read"):
        read_groups(path)


def test_a_file_that_cannot_be_written_is_a_log_error(tmp_path: Path) -> None:
    """A file where a directory belongs stops the write, and the error says which."""
    (tmp_path / "train").write_text("a file")

    with pytest.raises(LogError, match="could not write"):
        append_groups(tmp_path / "train" / "0001.parquet", [group(1.0)], split="train", step=1)


class Unstorable:
    def __repr__(self) -> str:
        return "an object"


def deep() -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(5000):
        value = {"in": value}
    return value


def loop() -> Any:
    value: dict[str, Any] = {}
    value["itself"] = value
    return value


def unstorable() -> list[Any]:
    return [{"x": loop()}]


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"metadata": {"k": Unstorable()}}, r"metadata\['k'\] is a Unstorable"),
        ({"metadata": {"k": [{"in": {1, 2}}]}}, r"metadata\['k'\] is a set"),
        ({"metadata": {"k": {1: "a"}}}, r"metadata\['k'\] has the key 1, which is a int"),
        ({"metadata": {1: "a"}}, r"metadata\[1\] has the key 1"),
        ({"metadata": {"k": 10**5000}}, r"metadata\['k'\] holds an integer too large"),
        ({"metrics": {"k": "text"}}, r"metrics\['k'\] is 'text', not a number"),
        ({"auto_metrics": {"k": None}}, r"auto_metrics\['k'\] is None, not a number"),
        ({"reward": None}, r"reward is None, not a number"),
        ({"reward": 10**400}, r"reward is too large"),
        ({"logs": [3]}, r"logs\[0\] is a int, not text"),
        ({"tools": [Unstorable()]}, r"tools is a Unstorable"),
        ({"initial_policy_version": "3"}, r"initial_policy_version is '3', not an int"),
        (
            {"messages_and_choices": [{"tool_calls": np.zeros(2)}]},
            r"messages_and_choices\[0\]\['tool_calls'\] is a ndarray",
        ),
        (
            {"messages_and_choices": [{"role": Unstorable()}]},
            r"messages_and_choices\[0\]\['role'\] is a Unst",
        ),
        (
            {
                "additional_histories": [
                    History.model_construct(messages_and_choices=unstorable(), tools=None)
                ]
            },
            r"additional_histories\[0\]\.messages_and_choices\[0\]\['x'\] contains itself",
        ),
    ],
)
def test_what_cannot_be_stored_is_named_and_nothing_is_written(
    path: Path, fields: dict[str, Any], place: str
) -> None:
    """The error names group, trajectory and key; a file that was there is unchanged."""
    append_groups(path, [group(1.0)], split="train", step=1)
    before = path.read_bytes()
    bad = art.Trajectory()
    for name, value in fields.items():
        setattr(bad, name, value)
    groups = [group(1.0), art.TrajectoryGroup([art.Trajectory(), bad])]

    with pytest.raises(InvalidTrajectoriesError, match=f"group 1, trajectory 1: {place}"):
        append_groups(path, groups, split="train", step=1)

    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["0001.parquet"]


def test_group_metadata_that_cannot_be_stored_is_named(path: Path) -> None:
    """What belongs to the group is checked as well."""
    with pytest.raises(InvalidTrajectoriesError, match=r"group 0: metadata\['k'\] is a Unstorable"):
        append_groups(
            path, [art.TrajectoryGroup([], metadata={"k": Unstorable()})], split="a", step=1
        )
    assert list(path.parent.iterdir()) == []


def test_a_step_beyond_the_column_is_refused(path: Path) -> None:
    """Steps have 31 bits."""
    with pytest.raises(InvalidTrajectoriesError, match="step"):
        append_groups(path, [group(1.0)], split="train", step=2**31)


def test_numpy_scalars_become_plain_numbers(path: Path) -> None:
    """Rewards, metrics and metadata of numpy are stored as the numbers that they are."""
    trajectory = art.Trajectory(
        metadata={"n": np.int64(3), "x": [np.float32(0.5)], "b": np.bool_(True)}
    )
    trajectory.reward = np.float32(0.25)  # type: ignore[assignment] # what rollouts do
    trajectory.metrics = {"m": np.int64(2), "f": np.float32(0.5), "b": np.bool_(False)}  # type: ignore[dict-item] # same

    [read] = round_trip(path, [art.TrajectoryGroup([trajectory])])

    result = read.trajectories[0]
    assert repr(result.metadata) == "{'n': 3, 'x': [0.5], 'b': True}"
    assert repr(result.metrics) == "{'m': 2, 'f': 0.5, 'b': False}"
    assert result.reward == 0.25


def test_metrics_keep_their_types_and_odd_values(path: Path) -> None:
    """Int, float, bool, NaN, infinity and huge ints come back as they were; the map holds them as floats."""
    metrics = {"i": 1, "f": 1.0, "b": True, "nan": math.nan, "inf": -math.inf, "huge": 10**400}
    trajectory = art.Trajectory(metrics=metrics, reward=-math.inf)

    [read] = round_trip(path, [art.TrajectoryGroup([trajectory], metrics=metrics)])

    assert repr(read.trajectories[0].metrics) == repr(metrics)
    assert repr(read.metrics) == repr(metrics)
    assert read.trajectories[0].reward == -math.inf
    [entries] = pq.read_table(path)["metrics_map"].to_pylist()
    assert {entry["key"]: entry["value"] for entry in entries}["huge"] == math.inf


def test_policy_versions_and_histories_survive(path: Path) -> None:
    """Versions beyond 64 bits too; tools that are null, empty or given are told apart."""
    tools: Any = [{"type": "function", "function": {"name": "\ud800"}}]
    all_tools: list[Any] = [None, [], tools]
    histories = [History(messages_and_choices=conversation(), tools=given) for given in all_tools]
    groups = [
        art.TrajectoryGroup(
            [
                art.Trajectory(
                    additional_histories=histories, tools=given, initial_policy_version=version
                )
                for given in all_tools
                for version in (None, 0, 2**80)
            ]
        )
    ]

    assert same_groups(round_trip(path, groups), groups)


def test_tools_that_trajectories_share_are_told_from_others(path: Path) -> None:
    """Trajectories of a group get the tools that they named, in their order, each in objects of its own."""
    search: Any = {"type": "function", "function": {"name": "search"}}
    odd: Any = {"type": "function", "function": {"name": "\ud800"}}
    all_tools: list[Any] = [[search], [search, odd], [odd, search], [dict(odd)], [odd], [search]]
    group = art.TrajectoryGroup(
        [
            art.Trajectory(
                messages_and_choices=conversation(),
                tools=tools,
                additional_histories=[History(messages_and_choices=[], tools=tools)],
            )
            for tools in all_tools
        ]
    )

    append_groups(path, [group], split="train", step=1)
    [read] = read_groups(path)

    assert [trajectory.tools for trajectory in read.trajectories] == all_tools
    assert [item.additional_histories[0].tools for item in read.trajectories] == all_tools
    first, *_, last = read.trajectories
    assert first.tools is not None
    assert last.tools is not None
    assert first.tools[0] is not last.tools[0]


def test_all_fields_of_what_was_read_count_as_set(path: Path) -> None:
    """Dumping only what was set leaves out nothing of a trajectory and of its further histories."""
    history = History(messages_and_choices=conversation())
    trajectory = art.Trajectory(
        messages_and_choices=conversation(), additional_histories=[history], reward=1.0
    )

    append_groups(path, [art.TrajectoryGroup([trajectory])], split="train", step=1)
    [read] = read_groups(path)[0].trajectories

    assert list(vars(read)) == list(art.Trajectory.model_fields)
    assert read.model_fields_set == set(art.Trajectory.model_fields)
    assert read.additional_histories[0].model_fields_set == set(History.model_fields)


def test_upstreams_function_names_write_and_read(tmp_path: Path) -> None:
    """Scripts find the two functions where upstream has them; writing replaces, as it does there."""
    path = str(tmp_path / "deep" / "groups.parquet")
    write_trajectory_groups_parquet([group(9.0)], path)
    write_trajectory_groups_parquet([group(1.0)], path)

    assert same_groups(read_trajectory_groups_parquet(path), [group(1.0)])
    write_trajectory_groups_parquet([], path)
    assert read_trajectory_groups_parquet(path) == []
    assert pq.read_schema(path).equals(SCHEMA)


def test_c007_a_reloaded_group_trains_like_the_live_one(path: Path) -> None:
    """Choices return as Choices with ids and logprobs, so the training input is the same."""
    entries = [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}]
    messages = conversation(
        prompt_token_ids=[1, 2], token_ids=[3], logprobs={"content": entries}, temperature=1.0
    )
    live = art.Trajectory(messages_and_choices=messages, reward=1.0)

    [reloaded] = round_trip(path, [art.TrajectoryGroup([live])])

    assert trajectory_sequences(reloaded.trajectories[0], 1.0) == trajectory_sequences(live, 1.0)


def test_c014_a_lone_surrogate_costs_nobody_their_text(path: Path) -> None:
    """The file is written, the ten columns show U+FFFD there and only there, and a reload is exact."""
    fine = art.Trajectory(messages_and_choices=conversation("ok"), logs=["ok"])
    tools: Any = [{"\ud800": 1}]
    odd = art.Trajectory(
        messages_and_choices=conversation("a\udc80"),
        logs=["\ud800"],
        metadata={"\udfff": "\ud83d\ude00"},
        metrics={"\ud800": 1},
        tools=tools,
    )
    error = PydanticException(type="E", message="\ud800", traceback="")
    groups = [
        art.TrajectoryGroup(
            [*[fine] * 31, odd], exceptions=[error], metadata={"k": "\ud800"}, logs=["\udfff"]
        )
    ]

    assert same_groups(round_trip(path, groups), groups)
    rows = pq.read_table(path).to_pylist()
    assert [row["messages"][1]["content"] for row in rows[:32]] == ["ok"] * 31 + ["a\ufffd"]
    assert rows[31]["logs"] == ["\ufffd"]
    assert rows[31]["metadata"] == '{"\ufffd":"\ufffd\ufffd"}'
    assert rows[32]["exception"]["message"] == "\ufffd"


def test_c017_nul_characters_survive(path: Path) -> None:
    """NUL in any text is kept by the file."""
    trajectory = art.Trajectory(
        messages_and_choices=conversation("\x00"), metadata={"\x00": "a\x00"}, logs=["\x00"]
    )
    groups = [art.TrajectoryGroup([trajectory], logs=["\x00"])]

    assert same_groups(round_trip(path, groups), groups)


def test_c019_empty_and_nested_empty_metadata_are_told_apart(path: Path) -> None:
    """A step of empty dicts can be written; {}, null and a missing key stay three things."""
    variants: list[dict[str, Any]] = [{}, {"a": {}}, {"a": None}, {"a": []}, {"a": [{}]}, {"a": ""}]
    groups = [
        art.TrajectoryGroup([art.Trajectory(metadata=metadata)], metadata=metadata)
        for metadata in variants
    ]

    read = round_trip(path, groups)

    assert same_groups(read, groups)
    assert [g.metadata for g in read] == [g.metadata for g in groups]


@pytest.mark.parametrize("value", [deep(), loop()], ids=["deep", "loop"])
def test_c022_nested_too_deep_or_self_referencing_metadata_is_named(path: Path, value: Any) -> None:
    """The error names the trajectory and the key, and nothing half-written is left."""
    bad = art.TrajectoryGroup([art.Trajectory(), art.Trajectory(metadata={"k": value})])

    with pytest.raises(
        InvalidTrajectoriesError, match=r"group 1, trajectory 1: metadata\['k'\] contains itself"
    ):
        append_groups(path, [group(1.0), bad], split="train", step=1)
    assert list(path.parent.iterdir()) == []


def test_c024_rewards_after_many_whole_numbers_are_exact(path: Path) -> None:
    """Types come from the schema, never from the first rows."""
    rewards = [*([1.0] * 150), 0.5, 1.9]

    [read] = round_trip(path, [group(*rewards)])

    assert [t.reward for t in read] == rewards
    assert pq.read_table(path)["reward"].to_pylist() == rewards
