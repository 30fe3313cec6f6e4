"""Rows of the trajectory file as groups again; see `trajectory_encoder`."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from itertools import chain, islice, pairwise, repeat
from typing import TYPE_CHECKING, Any

from art.books.message_decoder import decode_histories
from art.books.model_copies import copy_with
from art.books.plain_json import parse_exact, parse_json
from art.trajectories import History, PydanticException, Trajectory, TrajectoryGroup

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa

    from art.types import MessagesAndChoices

# Whatever of them is read has all fields set.
_TRAJECTORY = Trajectory.model_construct(_fields_set=set(Trajectory.model_fields))
_HISTORY = History.model_construct(_fields_set=set(History.model_fields))

_CONVERSATIONS = ["messages", "histories", "long_texts"]


def decode_groups(tables: Iterable[pa.Table]) -> dict[int, list[TrajectoryGroup]]:
    """Turn the tables of a file into groups, by `log_index` and in order of `group_index`."""
    read_at = datetime.now(UTC)
    found: dict[tuple[int, int], TrajectoryGroup] = {}
    indices: dict[tuple[int, int], list[int]] = {}
    for table in tables:
        long_texts = table["long_texts"].to_pylist()
        conversations = _histories(table["messages"].combine_chunks(), long_texts)
        further = _further_histories(table["histories"].combine_chunks(), long_texts)
        others = table.drop_columns(_CONVERSATIONS).to_pylist()
        for row, items, histories in zip(others, conversations, further, strict=True):
            extra = parse_exact(row["extra"]) if row["extra"] else {}
            key = (row["log_index"], row["group_index"])
            if key not in found:
                found[key] = _empty_group(row, extra)
                indices[key] = []
            if row["trajectory_index"] is not None:
                indices[key].append(row["trajectory_index"])
                found[key].trajectories.append(_trajectory(row, extra, items, histories, read_at))
            elif row["exception"] is not None:
                fields = extra.get("exception", row["exception"])
                found[key].exceptions.append(PydanticException(**fields))
    return _in_order(found, indices)


def _in_order(
    found: dict[tuple[int, int], TrajectoryGroup], indices: dict[tuple[int, int], list[int]]
) -> dict[int, list[TrajectoryGroup]]:
    logs: dict[int, list[TrajectoryGroup]] = {}
    for key in sorted(found):
        group = found[key]
        # Other programs may have written the rows again in another order.
        order = sorted(range(len(group)), key=indices[key].__getitem__)
        group.trajectories = [group.trajectories[i] for i in order]
        logs.setdefault(key[0], []).append(group)
    return logs


def _histories(
    lists: pa.ListArray, long_texts: Sequence[list[str] | None]
) -> list[MessagesAndChoices]:
    """Return one history for each list of messages; a null counts as an empty one."""
    structs, lengths = _flat(lists)
    return decode_histories(structs, lengths, long_texts)


def _flat(lists: pa.ListArray) -> tuple[pa.Array, list[int]]:
    """Return the values of all lists, and the length of each; of a null 0, as files hold no values for it."""
    # Not by `value_lengths`, which imports pyarrow.compute: that takes longer than a small file.
    offsets = lists.offsets.to_pylist()
    lengths = [end - start for start, end in pairwise(offsets)]
    return lists.values.slice(offsets[0], offsets[-1] - offsets[0]), lengths


def _further_histories(
    lists: pa.ListArray, long_texts: Sequence[list[str] | None]
) -> list[list[tuple[MessagesAndChoices, str | None]]]:
    """Return the further histories of each row, as items and the text of their tools."""
    if lists.null_count == len(lists):
        return [[]] * len(lists)
    structs, lengths = _flat(lists)
    texts_by_history = list(chain.from_iterable(map(repeat, long_texts, lengths)))
    items = _histories(structs.field("messages"), texts_by_history)
    histories = zip(items, structs.field("tools").to_pylist(), strict=True)
    return [list(islice(histories, length)) for length in lengths]


def _empty_group(row: Mapping[str, Any], extra: Mapping[str, Any]) -> TrajectoryGroup:
    return TrajectoryGroup(
        [],
        metadata=_json_value(row, extra, "group_metadata") or {},
        metrics=_json_value(row, extra, "group_metrics") or {},
        logs=extra.get("group_logs", row["group_logs"]) or [],
    )


def _trajectory(
    row: Mapping[str, Any],
    extra: Mapping[str, Any],
    items: MessagesAndChoices,
    histories: list[tuple[MessagesAndChoices, str | None]],
    read_at: datetime,
) -> Trajectory:
    all_tools = extra.get("histories") or [_parsed(text) for _, text in histories]
    # Without validation, which could only change what was stored.
    return copy_with(
        _TRAJECTORY,
        {
            "messages_and_choices": items,
            "tools": _json_value(row, extra, "tools"),
            "additional_histories": [
                copy_with(_HISTORY, {"messages_and_choices": history, "tools": tools})
                for (history, _), tools in zip(histories, all_tools, strict=True)
            ],
            "reward": math.nan if row["reward"] is None else row["reward"],
            "initial_policy_version": _value(row, extra, "initial_policy_version"),
            "final_policy_version": _value(row, extra, "final_policy_version"),
            "metrics": _json_value(row, extra, "metrics") or {},
            "auto_metrics": _json_value(row, extra, "auto_metrics") or {},
            "metadata": _json_value(row, extra, "metadata") or {},
            "logs": _value(row, extra, "logs") or [],
            "start_time": read_at,
        },
    )


def _value(row: Mapping[str, Any], extra: Mapping[str, Any], column: str) -> Any:
    return extra[column] if column in extra else row[column]


def _json_value(row: Mapping[str, Any], extra: Mapping[str, Any], column: str) -> Any:
    return extra[column] if column in extra else _parsed(row[column])


def _parsed(text: str | None) -> Any:
    return None if text is None else parse_json(text)
