"""Tells older trajectory formats, and writes what text files hold as parquet. Imports pyarrow: import lazily."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from art.books.trajectory_schema import UPSTREAM_COLUMNS
from art.books.trajectory_upstream import V2_VERSION, is_v1, is_v2
from art.errors import LogError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

# Upstream's own migration of JSONL wrote one more than its logging.
_V1_COLUMNS = frozenset({*UPSTREAM_COLUMNS, "additional_histories"})
_V2_SCHEMA = pa.schema(
    [
        ("format_version", pa.int16()),
        ("group_index", pa.int64()),
        ("trajectory_index", pa.int64()),
        ("group_json", pa.large_string()),
        ("trajectory_json", pa.large_string()),
    ],
    metadata={b"art.trajectory_parquet.version": b"2"},
)
_V2_COLUMNS = frozenset({*UPSTREAM_COLUMNS, *_V2_SCHEMA.names})


def older_format(path: Path) -> str | None:
    """Return the name of a file's format, None where it is the present one.

    Raises:
        FileNotFoundError: There is no such file.
        LogError: It is of no known format, or holds columns that a migration would lose.
    """
    if path.suffix != ".parquet":
        return "JSONL" if path.suffix == ".jsonl" else "YAML"
    try:
        columns = set(pq.read_schema(path).names)
    except FileNotFoundError:
        raise
    except (OSError, pa.ArrowException) as error:
        raise LogError(f"{path} cannot be read as parquet: {error}; it may be torn") from error
    if "log_index" in columns:
        return None
    if is_v2(columns):
        name, known = "parquet v2", _V2_COLUMNS
    elif is_v1(columns):
        name, known = "parquet v1", _V1_COLUMNS
    else:
        raise LogError(f"{path} has not the columns of a trajectory file")
    if not columns <= known:
        unknown = ", ".join(sorted(columns - known))
        raise LogError(f"{path} is like {name}, but has columns that would be lost: {unknown}")
    return name


def write_as_v2(documents: Sequence[dict[str, Any]], path: Path) -> None:
    """Write documents as upstream's second parquet format, which has room for keys that we do not know.

    A step on the way: `append_groups` brings that format into ours, unknown keys included.

    Raises:
        OSError: As the operating system raises it.
    """
    rows = [row for i, document in enumerate(documents) for row in _v2_rows(document, i)]
    pq.write_table(pa.Table.from_pylist(rows, schema=_V2_SCHEMA), path)


def _v2_rows(document: dict[str, Any], group_index: int) -> Iterator[dict[str, Any]]:
    # ASCII escapes: text of language models can hold lone surrogates, which Arrow's strings cannot.
    defaults: dict[str, Any] = {"exceptions": [], "metadata": {}, "metrics": {}, "logs": []}
    group = {**defaults, **{k: v for k, v in document.items() if k != "trajectories"}}
    shared = {
        "format_version": V2_VERSION,
        "group_index": group_index,
        "group_json": json.dumps(group),
    }
    if not document["trajectories"]:
        yield shared
    for i, trajectory in enumerate(document["trajectories"]):
        yield {**shared, "trajectory_index": i, "trajectory_json": json.dumps(trajectory)}
