"""Groups as rows of the trajectory file, many at a time as Arrow tables.

One row per trajectory, then one per exception of the group; a group that has neither gets one row. The rule
of `message_encoder` holds here too: what a column does not give back exactly is in `extra`, by column name.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from art.books.long_texts import LongTexts
from art.books.message_encoder import MessageColumns
from art.books.plain_json import (
    NotPlainError,
    Scalar,
    exact_text,
    plain,
    plain_fields,
    plain_scalar,
    shown,
    stored_text,
)
from art.books.trajectory_schema import HISTORY, SCHEMA
from art.errors import InvalidTrajectoriesError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from art.trajectories import History, PydanticException, Trajectory, TrajectoryGroup
    from art.types import MessagesAndChoices

NOTHING_WRITTEN = "; nothing was written"

_INT64 = range(-(2**63), 2**63)
# Small, so that no single call into Arrow keeps other threads from running for long.
_ROWS_PER_TABLE = 64
_CHARACTERS_PER_TABLE = 64 * 2**20  # messages may hold images


def group_rows(group: TrajectoryGroup, group_index: int, name: str) -> Iterator[Row]:
    """Turn one group into rows.

    Args:
        group: The group.
        group_index: Its number in the file.
        name: What error messages call it.

    Raises:
        InvalidTrajectoriesError: A value cannot be stored; the message names group, trajectory and key.
    """
    shared = shared_row(group, group_index, name)
    for i, trajectory in enumerate(group.trajectories):
        yield trajectory_row(shared, i, trajectory)
    for i, error in enumerate(group.exceptions):
        yield exception_row(shared, i, error)
    if not group.trajectories and not group.exceptions:
        yield shared


def shared_row(group: TrajectoryGroup, group_index: int, name: str) -> Row:
    """Return what all rows of a group have in common."""
    row = Row(name, {"group_index": group_index})
    row.put_json("group_metadata", row.plain_fields("metadata", group.metadata))
    row.put_json("group_metrics", row.numbers("metrics", group.metrics))
    row.put_lines("group_logs", row.lines("logs", group.logs))
    return row


def trajectory_row(shared: Row, i: int, trajectory: Trajectory) -> Row:
    """Return the row of trajectory `i` of a group."""
    row = shared.copy(f"{shared.name}, trajectory {i}")
    row.columns["trajectory_index"] = i
    metrics = row.numbers("metrics", trajectory.metrics)
    row.columns["reward"] = _reward(row, trajectory.reward)
    row.put_json("metrics", metrics)
    row.columns["metrics_map"] = numbers_map(metrics)
    row.put_json("auto_metrics", row.numbers("auto_metrics", trajectory.auto_metrics))
    row.put_json("metadata", row.plain_fields("metadata", trajectory.metadata))
    row.put_json("tools", row.tools("tools", trajectory.tools))
    row.put_lines("logs", row.lines("logs", trajectory.logs))
    row.put_int("initial_policy_version", trajectory.initial_policy_version)
    row.put_int("final_policy_version", trajectory.final_policy_version)
    row.items = trajectory.messages_and_choices
    row.histories = trajectory.additional_histories or ()
    return row


def exception_row(shared: Row, i: int, error: PydanticException) -> Row:
    """Return the row of exception `i` of a group."""
    row = shared.copy(f"{shared.name}, exception {i}")
    fields = {"type": error.type, "message": error.message, "traceback": error.traceback}
    row.columns["exception"] = {key: shown(text) for key, text in fields.items()}
    if row.columns["exception"] != fields:
        row.extra["exception"] = fields
    return row


def encode_rows(rows: Iterable[Row], stamp: Mapping[str, Any]) -> Iterator[pa.Table]:
    """Turn rows into tables that are bounded in rows and in memory.

    Args:
        rows: See `group_rows`.
        stamp: Values of further columns, the same for every row: step, split, log_index.

    Raises:
        InvalidTrajectoriesError: A message cannot be stored.
    """
    batch = _Batch(stamp)
    for row in rows:
        batch.add(row)
        if batch.is_full:
            yield batch.table()
            batch = _Batch(stamp)
    if batch.rows:
        yield batch.table()


def check_row(row: Row) -> None:
    """Find out, without making a table of it, whether a row can be stored.

    Raises:
        InvalidTrajectoriesError: A message cannot.
    """
    _Batch({}).add(row)


@dataclass
class Row:
    """One row in the making.

    Attributes:
        name: What error messages call it.
        columns: Values of all columns but the conversations and `extra`.
        extra: What the columns do not give back exactly.
        items: The messages of a trajectory.
        histories: The further histories of a trajectory.
    """

    name: str
    columns: dict[str, Any]
    extra: dict[str, Any] = field(default_factory=dict)
    items: MessagesAndChoices | None = None
    histories: Sequence[History] = ()

    def copy(self, name: str) -> Row:
        """Return a row that starts from this one's columns."""
        return Row(name, dict(self.columns), dict(self.extra))

    def error(self, what: str) -> InvalidTrajectoriesError:
        """Return an error about a value of this row."""
        return InvalidTrajectoriesError(f"{self.name}: {what}{NOTHING_WRITTEN}")

    # --- checking ---

    def plain_fields(self, key: str, values: dict[str, Any] | None) -> dict[str, Any]:
        """Return a dict of the user's as plain JSON."""
        try:
            return plain_fields(values or {})
        except NotPlainError as reason:
            raise self.error(f"{key}{reason}") from reason

    def numbers(self, key: str, values: dict[str, Any] | None) -> dict[str, Any]:
        """Return metrics as plain numbers."""
        numbers = self.plain_fields(key, values)
        for name, value in numbers.items():
            if not isinstance(value, (int, float)):
                raise self.error(f"{key}[{name!r}] is {value!r}, not a number")
        return numbers

    def lines(self, key: str, values: Sequence[str] | None) -> list[str]:
        """Return lines of text as plain strings."""
        values = values or ()
        for i, value in enumerate(values):
            if not isinstance(value, str):
                raise self.error(f"{key}[{i}] is a {type(value).__name__}, not text")
        return [str.__str__(value) for value in values]

    def scalar(self, key: str, value: object) -> Scalar:
        """Return a plain scalar."""
        try:
            return plain_scalar(value)
        except NotPlainError as reason:
            raise self.error(f"{key} {reason}") from reason

    def tools(self, key: str, tools: Any) -> list[Any] | None:
        """Return tools as plain JSON."""
        try:
            value = plain(tools, models=True)
        except NotPlainError as reason:
            raise self.error(f"{key} {reason}") from reason
        if value is not None and not isinstance(value, list):
            raise self.error(f"{key} is a {type(tools).__name__}, not a list")
        return value

    # --- filling ---

    def put_json(self, column: str, value: Any) -> None:
        """Put JSON, null for {} and None."""
        self.columns[column], is_exact = _json_column(value)
        if not is_exact:
            self.extra[column] = value

    def put_lines(self, column: str, lines: list[str]) -> None:
        """Put lines of text, null if there are none."""
        self.columns[column] = [shown(line) for line in lines] or None
        if self.columns[column] != (lines or None):
            self.extra[column] = lines

    def put_int(self, column: str, value: object) -> None:
        """Put a whole number where there is one."""
        if value is None:
            return
        number = self.scalar(column, value)
        if type(number) is not int:
            raise self.error(f"{column} is {value!r}, not an int")
        (self.columns if number in _INT64 else self.extra)[column] = number


def numbers_map(metrics: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return the value of `metrics_map`: the numbers among the metrics as floats."""
    numbers = {
        shown(key): _as_float(value)
        for key, value in metrics.items()
        if isinstance(value, (int, float))
    }
    return [{"key": key, "value": value} for key, value in numbers.items()] or None


def _json_column(value: Any) -> tuple[str | None, bool]:
    """Return what a JSON column shows of a value (null if empty), and whether it shows it exactly."""
    if not value:
        return None, value != []  # a field is either a dict or "a list or None"
    return stored_text(value)


def _num_characters(columns: Mapping[str, Any]) -> int:
    texts = [value for value in columns.values() if type(value) is str]
    logs = [columns["group_logs"] or (), columns.get("logs") or ()]
    return sum(map(len, chain(texts, *logs)))


def _reward(row: Row, reward: object) -> float:
    value = row.scalar("reward", reward)
    if not isinstance(value, (int, float)):
        raise row.error(f"reward is {reward!r}, not a number")
    try:
        return float(value)
    except OverflowError as error:
        raise row.error(f"reward is too large ({error})") from error


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


class _Batch:
    """Rows of one table in the making. The conversations, by far the most of it, are collected as columns."""

    def __init__(self, stamp: Mapping[str, Any]) -> None:
        self.rows: list[dict[str, Any]] = []
        self._stamp = stamp
        self._text_size = 0
        self._messages = MessageColumns()
        self._num_messages: list[int | None] = []  # by row; None makes a null
        self._history_messages = MessageColumns()
        self._num_history_messages: list[int | None] = []  # by history
        self._history_tools: list[str | None] = []
        self._num_histories: list[int | None] = []  # by row

    @property
    def is_full(self) -> bool:
        size = self._text_size + self._messages.size + self._history_messages.size
        return len(self.rows) >= _ROWS_PER_TABLE or size >= _CHARACTERS_PER_TABLE

    def add(self, row: Row) -> None:
        long_texts = LongTexts()
        if row.items is not None:
            _add_messages(self._messages, row, "messages_and_choices", row.items, long_texts)
        self._num_messages.append(len(row.items) if row.items is not None else None)
        self._add_histories(row, long_texts)
        extra = exact_text(row.extra) if row.extra else None
        columns = {"extra": extra, "long_texts": long_texts.texts()}
        self.rows.append({**row.columns, **self._stamp, **columns})
        self._text_size += _num_characters(row.columns) + len(extra or "") + long_texts.size

    def _add_histories(self, row: Row, long_texts: LongTexts) -> None:
        self._num_histories.append(len(row.histories) or None)
        all_tools, all_exact = [], True
        for i, history in enumerate(row.histories):
            key = f"additional_histories[{i}]"
            items = history.messages_and_choices
            place = f"{key}.messages_and_choices"
            _add_messages(self._history_messages, row, place, items, long_texts)
            self._num_history_messages.append(len(items))
            tools = row.tools(f"{key}.tools", history.tools)
            text, is_exact = _json_column(tools)
            self._history_tools.append(text)
            all_tools.append(tools)
            all_exact = all_exact and is_exact
        if not all_exact:
            row.extra["histories"] = all_tools

    def table(self) -> pa.Table:
        histories = pa.StructArray.from_arrays(
            [
                _lists(self._num_history_messages, self._history_messages.array()),
                pa.array(self._history_tools, HISTORY.field("tools").type),
            ],
            fields=list(HISTORY),
        )
        conversations = {
            "messages": _lists(self._num_messages, self._messages.array()),
            "histories": _lists(self._num_histories, histories),
        }
        others = pa.schema([column for column in SCHEMA if column.name not in conversations])
        table = pa.Table.from_pylist(self.rows, schema=others)
        columns = [
            conversations[name] if name in conversations else table[name] for name in SCHEMA.names
        ]
        return pa.Table.from_arrays(columns, schema=SCHEMA)


def _add_messages(
    columns: MessageColumns, row: Row, key: str, items: MessagesAndChoices, long_texts: LongTexts
) -> None:
    try:
        columns.add(items, long_texts)
    except NotPlainError as reason:
        raise row.error(f"{key}{reason}") from reason


def _lists(lengths: Sequence[int | None], values: pa.Array) -> pa.ListArray:
    """Cut values into lists of these lengths, None for a null."""
    ends = accumulate(length or 0 for length in lengths)
    starts = [0, *ends]
    offsets: list[int | None] = [
        None if length is None else start for start, length in zip(starts, lengths, strict=False)
    ]
    return pa.ListArray.from_arrays(pa.array([*offsets, starts[-1]], pa.int32()), values)
