"""Groups as rows of the trajectory file, each checked value by value; `trajectory_encoder` makes tables of them.

One row per trajectory, then one per exception of the group; a group that has neither gets one row. The rule
of `message_encoder` holds here too: what a column does not give back exactly is in `extra`, by column name.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from art.books.plain_json import (
    NotPlainError,
    Scalar,
    plain,
    plain_fields,
    plain_scalar,
    shown,
    stored_text,
)
from art.errors import InvalidTrajectoriesError
from art.trajectories import History

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from art.trajectories import PydanticException, Trajectory, TrajectoryGroup
    from art.types import MessagesAndChoices

NOTHING_WRITTEN = "; nothing was written"

_INT64 = range(-(2**63), 2**63)


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
    tools = row.tools("tools", trajectory.tools)
    row.columns["tools"] = tools.text
    if not tools.is_exact:
        row.extra["tools"] = tools.value
    row.put_lines("logs", row.lines("logs", trajectory.logs))
    row.put_int("initial_policy_version", trajectory.initial_policy_version)
    row.put_int("final_policy_version", trajectory.final_policy_version)
    row.items = row.listed("messages_and_choices", trajectory.messages_and_choices)
    row.histories = row.listed("additional_histories", trajectory.additional_histories or [])
    for k, history in enumerate(row.histories):
        if not isinstance(history, History):
            raise row.error(
                f"additional_histories[{k}] is a {type(history).__name__}, not a History"
            )
    return row


def exception_row(shared: Row, i: int, error: PydanticException) -> Row:
    """Return the row of exception `i` of a group."""
    row = shared.copy(f"{shared.name}, exception {i}")
    fields = {"type": error.type, "message": error.message, "traceback": error.traceback}
    row.columns["exception"] = {key: shown(text) for key, text in fields.items()}
    if row.columns["exception"] != fields:
        row.extra["exception"] = fields
    return row


class StoredTools(NamedTuple):
    """Tools as they are stored.

    Attributes:
        value: As plain JSON.
        text: What a JSON column shows of it, see `json_column`.
        is_exact: Whether the text shows it exactly.
    """

    value: list[Any] | None
    text: str | None
    is_exact: bool


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
    # Of all rows of the group, which tend to name the very same tools. By the identities of the tools, which
    # are kept, so that no other object gets one of these.
    known_tools: dict[tuple[int, ...], tuple[list[Any], StoredTools]] = field(default_factory=dict)

    def copy(self, name: str) -> Row:
        """Return a row that starts from this one's columns."""
        return Row(name, dict(self.columns), dict(self.extra), known_tools=self.known_tools)

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
        if values is None:
            return []
        if not isinstance(values, (list, tuple)):  # an iterator could be read but once
            raise self.error(f"{key} is a {type(values).__name__}, not a list")
        for i, value in enumerate(values):
            if not isinstance(value, str):
                raise self.error(f"{key}[{i}] is a {type(value).__name__}, not text")
        return [str.__str__(value) for value in values]

    def listed(self, key: str, items: list[Any]) -> list[Any]:
        """Return a list as it is."""
        if not isinstance(items, list):
            raise self.error(f"{key} is a {type(items).__name__}, not a list")
        return items

    def scalar(self, key: str, value: object) -> Scalar:
        """Return a plain scalar."""
        try:
            return plain_scalar(value)
        except NotPlainError as reason:
            raise self.error(f"{key} {reason}") from reason

    def tools(self, key: str, tools: list[Any] | None) -> StoredTools:
        """Return tools as they are stored."""
        if type(tools) is not list:
            return self._converted_tools(key, tools)
        ids = tuple(map(id, tools))
        if ids not in self.known_tools:
            self.known_tools[ids] = list(tools), self._converted_tools(key, tools)
        return self.known_tools[ids][1]

    def _converted_tools(self, key: str, tools: object) -> StoredTools:
        try:
            value = plain(tools, models=True)
        except NotPlainError as reason:
            raise self.error(f"{key} {reason}") from reason
        if value is not None and not isinstance(value, list):
            raise self.error(f"{key} is a {type(tools).__name__}, not a list")
        return StoredTools(value, *json_column(value))

    # --- filling ---

    def put_json(self, column: str, value: Any) -> None:
        """Put JSON, null for {} and None."""
        self.columns[column], is_exact = json_column(value)
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


def json_column(value: Any) -> tuple[str | None, bool]:
    """Return what a JSON column shows of a value (null if empty), and whether it shows it exactly."""
    if not value:
        return None, value != []  # a field is either a dict or "a list or None"
    return stored_text(value)


def _reward(row: Row, reward: object) -> float:
    value = row.scalar("reward", reward)
    if not isinstance(value, (int, float)):
        raise row.error(
            f"reward is {reward!r}, not a number (a rollout that could not be scored should raise, so that it "
            "counts as an exception)"
        )
    try:
        return float(value)
    except OverflowError as error:
        raise row.error(f"reward is too large ({error})") from error


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
