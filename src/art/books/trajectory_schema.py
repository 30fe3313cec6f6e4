"""The columns of the trajectory file. Imports pyarrow: import this module lazily.

The first ten columns are upstream's (v1, up to 0.5.18): same names, types, order and meaning, and in the
message struct the first five fields. What follows is typed for queries, and holds what they cannot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

CALL = pa.struct([("id", pa.string()), ("name", pa.string()), ("arguments", pa.string())])

MESSAGE = pa.struct(
    [
        ("role", pa.string()),
        ("content", pa.string()),  # of a multimodal message: its text parts, joined
        ("tool_calls", pa.string()),  # JSON
        ("tool_call_id", pa.string()),
        ("trainable", pa.bool_()),  # the turn is a Choice
        # --- additions ---
        ("calls", pa.list_(CALL)),  # the tool calls again, for queries
        ("finish_reason", pa.string()),
        ("content_parts", pa.string()),  # JSON of a multimodal content
        ("token_ids", pa.list_(pa.int32())),
        # The prompt is the first `prompt_shared_length` ids of the previous Choice's prompt and completion,
        # then `prompt_suffix`: each turn's prompt repeats the turns before it.
        ("prompt_shared_length", pa.int32()),
        ("prompt_suffix", pa.list_(pa.int32())),
        ("logprobs", pa.list_(pa.float64())),
        # The text and the bytes of each entry of `logprobs`. Texts that are the `token_ids` ("token_id:17", as
        # servers write them that return ids) are left out, as are bytes that are the UTF-8 of the text.
        ("tokens", pa.list_(pa.string())),
        ("token_bytes", pa.list_(pa.binary())),  # null where no entry has bytes
        ("extra", pa.string()),  # JSON of what the columns above do not give back exactly; it wins
    ]
)

_EXCEPTION = pa.struct(
    [("type", pa.string()), ("message", pa.string()), ("traceback", pa.string())]
)
# Entries of a map. Parquet's own map type would keep HF datasets from loading the file at all; in DuckDB
# `map_from_entries(metrics_map)['name']` makes one of them.
_METRIC = pa.struct([("key", pa.string()), ("value", pa.float64())])
HISTORY = pa.struct([("messages", pa.list_(MESSAGE)), ("tools", pa.string())])

SCHEMA = pa.schema(
    [
        ("group_index", pa.int64()),
        # These are JSON, null if empty; so are `metrics`, `metadata` and `tools`.
        ("group_metadata", pa.string()),
        ("group_metrics", pa.string()),
        ("group_logs", pa.list_(pa.string())),
        ("reward", pa.float64()),
        ("metrics", pa.string()),
        ("metadata", pa.string()),
        ("tools", pa.string()),
        ("logs", pa.list_(pa.string())),
        ("messages", pa.list_(MESSAGE)),
        # --- additions ---
        ("step", pa.int32()),
        ("split", pa.string()),
        # Null: the row tells of an exception, or of an empty group.
        ("trajectory_index", pa.int32()),
        ("log_index", pa.int32()),  # which `log` call of this split and step
        ("exception", _EXCEPTION),
        ("metrics_map", pa.list_(_METRIC)),  # `metrics` again, for queries
        ("auto_metrics", pa.string()),  # JSON
        ("initial_policy_version", pa.int64()),
        ("final_policy_version", pa.int64()),
        ("histories", pa.list_(HISTORY)),
        ("extra", pa.string()),  # as in a message, by column name
        ("long_texts", pa.list_(pa.string())),  # what `content_parts` refers to
    ]
)

UPSTREAM_COLUMNS = SCHEMA.names[:10]

# Nearly every value of these is another one: a dictionary would only cost time and space.
_UNIQUE_TEXTS = frozenset({"content", "tool_calls", "tool_call_id", "id", "arguments"})
_NUMBERS_BY_TOKEN = frozenset({"token_ids", "prompt_suffix", "logprobs"})


def _leaves(fields: Iterable[pa.Field], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path in the file, and the name of the field, of every column that holds values."""
    for field in fields:
        path, kind = prefix + field.name, field.type
        while pa.types.is_list(kind):
            path, kind = f"{path}.list.element", kind.value_type
        if pa.types.is_struct(kind):
            yield from _leaves(kind, f"{path}.")
        else:
            yield path, field.name


# Images that every turn repeats are in the file once.
COLUMNS_WITH_DICTIONARY = [
    path for path, name in _leaves(SCHEMA) if name not in _UNIQUE_TEXTS | _NUMBERS_BY_TOKEN
]
LOGPROB_COLUMNS = [path for path, name in _leaves(SCHEMA) if name == "logprobs"]
