"""Groups as rows of the trajectory file and back, as plain dicts by column name.

One row per trajectory, then one per exception of the group; a group that has neither gets one row. The rule
of `message_codec` holds here too: what a column does not give back exactly is in `extra`, by column name.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from art.books.message_codec import decode_messages, encode_messages
from art.books.plain_json import (
    NotPlainError,
    Scalar,
    exact_text,
    json_text,
    parse_exact,
    plain,
    plain_scalar,
    shown,
)
from art.errors import InvalidTrajectoriesError
from art.trajectories import History, PydanticException, Trajectory, TrajectoryGroup

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_INT64 = range(-(2**63), 2**63)


def encode_group(group: TrajectoryGroup, group_index: int, name: str) -> Iterator[dict[str, Any]]:
    """Turn one group into rows; `step`, `split` and `log_index` are the caller's to add.

    Args:
        group: The group.
        group_index: Its number in the file.
        name: What error messages call it.

    Raises:
        InvalidTrajectoriesError: A value cannot be stored; the message names group, trajectory and key.
    """
    shared = _Row(name)
    shared.put_json("group_metadata", shared.plain_fields("metadata", group.metadata))
    shared.put_json("group_metrics", shared.numbers("metrics", group.metrics))
    shared.put_lines("group_logs", shared.lines("logs", group.logs))
    shared.columns["group_index"] = group_index
    for i, trajectory in enumerate(group.trajectories):
        row = shared.named(f"{name}, trajectory {i}")
        row.columns["trajectory_index"] = i
        _put_trajectory(row, trajectory)
        yield row.finished()
    for i, error in enumerate(group.exceptions):
        row = shared.named(f"{name}, exception {i}")
        _put_exception(row, error)
        yield row.finished()
    if not group.trajectories and not group.exceptions:
        yield shared.finished()


def decode_groups(rows: Iterable[Mapping[str, Any]]) -> dict[int, list[TrajectoryGroup]]:
    """Turn the rows of a file into groups, by `log_index` and in order of `group_index`."""
    found: dict[tuple[int, int], TrajectoryGroup] = {}
    indices: dict[tuple[int, int], list[int]] = {}
    for row in rows:
        extra = parse_exact(row["extra"]) if row["extra"] else {}
        key = (row["log_index"], row["group_index"])
        if key not in found:
            found[key] = _empty_group(row, extra)
            indices[key] = []
        if row["trajectory_index"] is not None:
            indices[key].append(row["trajectory_index"])
            found[key].trajectories.append(_decode_trajectory(row, extra))
        elif row["exception"] is not None:
            fields = extra.get("exception", row["exception"])
            found[key].exceptions.append(PydanticException(**fields))
    logs: dict[int, list[TrajectoryGroup]] = {}
    for key in sorted(found):
        group = found[key]
        # Other programs may have written the rows again in another order.
        order = sorted(range(len(group)), key=indices[key].__getitem__)
        group.trajectories = [group.trajectories[i] for i in order]
        logs.setdefault(key[0], []).append(group)
    return logs


class _Row:
    """One row in the making: its columns, and what they do not give back exactly."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.columns: dict[str, Any] = {}
        self.extra: dict[str, Any] = {}

    def named(self, name: str) -> _Row:
        """Return a copy that starts from this one's columns."""
        row = _Row(name)
        row.columns, row.extra = dict(self.columns), dict(self.extra)
        return row

    def finished(self) -> dict[str, Any]:
        return {**self.columns, "extra": exact_text(self.extra) if self.extra else None}

    def error(self, what: str) -> InvalidTrajectoriesError:
        return InvalidTrajectoriesError(f"{self.name}: {what}; nothing was written")

    # --- checking ---

    def plain_fields(self, key: str, values: Mapping[str, Any]) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for name, value in values.items():
            try:
                fields.update(plain({name: value}))
            except NotPlainError as reason:
                raise self.error(f"{key}[{name!r}] {reason}") from reason
        return fields

    def numbers(self, key: str, values: Mapping[str, Any]) -> dict[str, Any]:
        numbers = self.plain_fields(key, values)
        for name, value in numbers.items():
            if not isinstance(value, (int, float)):
                raise self.error(f"{key}[{name!r}] is {value!r}, not a number")
        return numbers

    def lines(self, key: str, values: Sequence[str]) -> list[str]:
        for i, value in enumerate(values):
            if not isinstance(value, str):
                raise self.error(f"{key}[{i}] is a {type(value).__name__}, not text")
        return [str.__str__(value) for value in values]

    def messages(self, key: str, items: Sequence[Any]) -> list[dict[str, Any]]:
        try:
            return encode_messages(list(items))
        except NotPlainError as reason:
            raise self.error(f"{key}{reason}") from reason

    def scalar(self, key: str, value: object) -> Scalar:
        try:
            return plain_scalar(value)
        except NotPlainError as reason:
            raise self.error(f"{key} {reason}") from reason

    # --- filling ---

    def put_json(self, column: str, value: Any) -> None:
        """Put JSON, null for {} and None."""
        self.columns[column], exact = _json_column(value)
        if not exact:
            self.extra[column] = value

    def put_lines(self, column: str, lines: list[str]) -> None:
        self.columns[column] = [shown(line) for line in lines] or None
        if self.columns[column] != (lines or None):
            self.extra[column] = lines

    def put_int(self, column: str, value: object) -> None:
        if value is None:
            return
        number = self.scalar(column, value)
        if type(number) is not int:
            raise self.error(f"{column} is {value!r}, not an int")
        (self.columns if number in _INT64 else self.extra)[column] = number


def _put_exception(row: _Row, error: PydanticException) -> None:
    fields = {"type": error.type, "message": error.message, "traceback": error.traceback}
    row.columns["exception"] = {key: shown(text) for key, text in fields.items()}
    if row.columns["exception"] != fields:
        row.extra["exception"] = fields


def _put_trajectory(row: _Row, trajectory: Trajectory) -> None:
    metrics = row.numbers("metrics", trajectory.metrics)
    row.columns["reward"] = _reward(row, trajectory.reward)
    row.put_json("metrics", metrics)
    row.columns["metrics_map"] = numbers_map(metrics)
    row.put_json("auto_metrics", row.numbers("auto_metrics", trajectory.auto_metrics))
    row.put_json("metadata", row.plain_fields("metadata", trajectory.metadata))
    row.put_json("tools", _tools(row, "tools", trajectory.tools))
    row.put_lines("logs", row.lines("logs", trajectory.logs))
    row.columns["messages"] = row.messages("messages_and_choices", trajectory.messages_and_choices)
    row.put_int("initial_policy_version", trajectory.initial_policy_version)
    row.put_int("final_policy_version", trajectory.final_policy_version)
    _put_histories(row, trajectory.additional_histories)


def _put_histories(row: _Row, histories: Sequence[History]) -> None:
    structs, all_tools, all_exact = [], [], True
    for i, history in enumerate(histories):
        key = f"additional_histories[{i}]"
        messages = row.messages(f"{key}.messages_and_choices", history.messages_and_choices)
        tools = _tools(row, f"{key}.tools", history.tools)
        text, exact = _json_column(tools)
        structs.append({"messages": messages, "tools": text})
        all_tools.append(tools)
        all_exact = all_exact and exact
    row.columns["histories"] = structs or None
    if not all_exact:
        row.extra["histories"] = all_tools


def _json_column(value: Any) -> tuple[str | None, bool]:
    """Return what a JSON column shows of a value (null if empty), and whether it shows it exactly."""
    if not value:
        return None, value != []  # a field is either a dict or "a list or None"
    text = json_text(value)
    return shown(text), shown(text) == text


def _tools(row: _Row, key: str, tools: Any) -> list[Any] | None:
    try:
        value = plain(tools, models=True)
    except NotPlainError as reason:
        raise row.error(f"{key} {reason}") from reason
    if value is not None and not isinstance(value, list):
        raise row.error(f"{key} is a {type(tools).__name__}, not a list")
    return value


def _reward(row: _Row, reward: object) -> float:
    value = row.scalar("reward", reward)
    if not isinstance(value, (int, float)):
        raise row.error(f"reward is {reward!r}, not a number")
    try:
        return float(value)
    except OverflowError as error:
        raise row.error(f"reward is too large ({error})") from error


def numbers_map(metrics: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return the value of `metrics_map`: the numbers among the metrics as floats."""
    numbers = {
        shown(key): _as_float(value)
        for key, value in metrics.items()
        if isinstance(value, (int, float))
    }
    return [{"key": key, "value": value} for key, value in numbers.items()] or None


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _empty_group(row: Mapping[str, Any], extra: Mapping[str, Any]) -> TrajectoryGroup:
    return TrajectoryGroup(
        [],
        metadata=_json_value(row, extra, "group_metadata") or {},
        metrics=_json_value(row, extra, "group_metrics") or {},
        logs=extra.get("group_logs", row["group_logs"]) or [],
    )


def _decode_trajectory(row: Mapping[str, Any], extra: Mapping[str, Any]) -> Trajectory:
    histories = row["histories"] or []
    all_tools = extra.get("histories") or [_parsed(history["tools"]) for history in histories]
    return Trajectory(
        messages_and_choices=decode_messages(row["messages"] or []),
        tools=_json_value(row, extra, "tools"),
        additional_histories=[
            History(messages_and_choices=decode_messages(history["messages"]), tools=tools)
            for history, tools in zip(histories, all_tools, strict=True)
        ],
        reward=math.nan if row["reward"] is None else row["reward"],
        initial_policy_version=extra.get("initial_policy_version", row["initial_policy_version"]),
        final_policy_version=extra.get("final_policy_version", row["final_policy_version"]),
        metrics=_json_value(row, extra, "metrics") or {},
        auto_metrics=_json_value(row, extra, "auto_metrics") or {},
        metadata=_json_value(row, extra, "metadata") or {},
        logs=extra.get("logs", row["logs"]) or [],
    )


def _json_value(row: Mapping[str, Any], extra: Mapping[str, Any], column: str) -> Any:
    return extra[column] if column in extra else _parsed(row[column])


def _parsed(text: str | None) -> Any:
    return None if text is None else json.loads(text)
