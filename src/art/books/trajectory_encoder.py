"""Rows of the trajectory file as Arrow tables, many at a time."""

from __future__ import annotations

from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from art.books.long_texts import LongTexts
from art.books.message_encoder import MessageColumns
from art.books.plain_json import NotPlainError, exact_text
from art.books.trajectory_schema import HISTORY, SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from art.books.trajectory_rows import Row
    from art.types import MessagesAndChoices

# Small, so that no single call into Arrow keeps other threads from running for long.
_ROWS_PER_TABLE = 64
_CHARACTERS_PER_TABLE = 64 * 2**20  # messages may hold images


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


def _num_characters(columns: Mapping[str, Any]) -> int:
    texts = [value for value in columns.values() if type(value) is str]
    logs = [columns["group_logs"] or (), columns.get("logs") or ()]
    return sum(map(len, chain(texts, *logs)))


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
            self._history_tools.append(tools.text)
            all_tools.append(tools.value)
            all_exact = all_exact and tools.is_exact
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
