"""The only reader and writer of trajectory parquet. Imports pyarrow: import this module lazily.

A file holds the groups of one split and step. It is replaced as a whole, by a new file that starts with the
rows of the old one; memory holds one row group at a time. The callers hold the directory's write lock.
"""

from __future__ import annotations

import itertools
import logging
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from art.books.atomic import replacing
from art.books.os_errors import log_error
from art.books.trajectory_rows import decode_groups, encode_group
from art.books.trajectory_schema import SCHEMA
from art.books.trajectory_upstream import is_v1, is_v2, rows_of_v1, rows_of_v2
from art.errors import InvalidTrajectoriesError, LogError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from art.trajectories import TrajectoryGroup

logger = logging.getLogger(__name__)

_ROWS_PER_GROUP = 512
_CHARACTERS_PER_GROUP = 64 * 2**20  # images in messages would make 512 rows too much for memory
_CHARACTERS_PER_TOKEN = 16
_MAX_STEP = 2**31 - 1

# What pyarrow, json and pydantic raise on a file that is torn, corrupt or of another kind.
_READ_ERRORS = (OSError, ValueError, KeyError, TypeError, pa.ArrowNotImplementedError)


class _UnreadableError(Exception):
    """An existing file cannot be read."""


def append_groups(path: Path, groups: Sequence[TrajectoryGroup], *, split: str, step: int) -> int:
    """Add the groups of one `log` call to a file, creating it where there is none.

    A file of upstream is brought into this format, its rows as log 0. A file that cannot be read is moved
    aside with a warning, and a new one is written.

    Args:
        path: The file of this split and step.
        groups: What to add.
        split: Written to each row.
        step: Written to each row.

    Returns:
        The `log_index` of these groups: 0 in a new file, else one more than the highest.

    Raises:
        InvalidTrajectoriesError: A group holds what cannot be stored; the file is as before.
        LogError: The file could not be written; it is as before.
    """
    if not -_MAX_STEP <= step <= _MAX_STEP:
        raise InvalidTrajectoriesError(f"step {step} is too large for {path}; steps have 31 bits")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            return _write(path, groups, split=split, step=step)
        try:
            return _rewrite(path, groups, split=split, step=step)
        except _UnreadableError as error:
            aside = _free_name_beside(path)
            log_index = _write(path, groups, split=split, step=step, move_old_to=aside)
            logger.warning(
                "%s could not be read (%s); it was moved to %s and a new file was written",
                path,
                error,
                aside.name,
            )
            return log_index
    except OSError as error:
        raise log_error("write", path, error) from error


def write_groups(path: Path, groups: Sequence[TrajectoryGroup]) -> None:
    """Write a file of these groups alone, replacing what is there; its split and step are unknown.

    Raises:
        InvalidTrajectoriesError: A group holds what cannot be stored; the file is as before.
        LogError: The file could not be written; it is as before.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, groups, split=None, step=None)
    except OSError as error:
        raise log_error("write", path, error) from error


def read_groups(path: Path) -> list[TrajectoryGroup]:
    """Read all groups of a file, of this format or upstream's, in the order in which they were logged.

    Raises:
        FileNotFoundError: There is no such file.
        LogError: It cannot be read.
    """
    return list(itertools.chain.from_iterable(read_logs(path).values()))


def read_logs(path: Path) -> dict[int, list[TrajectoryGroup]]:
    """Read the groups of a file by `log_index`, in ascending order; see `read_groups`."""
    try:
        with path.open("rb") as source:
            return decode_groups(_rows(pq.ParquetFile(source)))
    except FileNotFoundError:
        raise
    except _READ_ERRORS as error:
        raise LogError(
            f"{path} cannot be read as a trajectory file: {error}; it may be torn or of another kind"
        ) from error


# --- reading ---


def _rows(file: pq.ParquetFile) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file of any known format, as rows of ours with every column."""
    names = file.schema_arrow.names
    rows = _raw_rows(file)
    if "log_index" not in names:
        rows = _upstream_rows(rows, names)
    empty = dict.fromkeys(SCHEMA.names)
    return ({**empty, **row} for row in rows)


def _upstream_rows(
    rows: Iterator[dict[str, Any]], names: Sequence[str]
) -> Iterator[dict[str, Any]]:
    if is_v2(names):
        rows = rows_of_v2(rows)
    elif is_v1(names):
        rows = rows_of_v1(rows)
    else:
        raise ValueError(f"its columns are {', '.join(names) or 'none'}")
    return ({**row, "log_index": 0} for row in rows)


def _raw_rows(file: pq.ParquetFile) -> Iterator[dict[str, Any]]:
    for batch in file.iter_batches(batch_size=_ROWS_PER_GROUP):
        yield from batch.to_pylist()


def _existing_tables(source: IO[bytes], split: str, step: int) -> Iterator[pa.Table]:
    """Yield the rows of an existing file as tables of our schema.

    Raises:
        _UnreadableError: It cannot be read, or holds columns that would be lost.
    """
    try:
        file = pq.ParquetFile(source)
        if file.schema_arrow.equals(SCHEMA):
            for i in range(file.num_row_groups):
                yield file.read_row_group(i)
            return
        names = file.schema_arrow.names
        if "log_index" in names and not set(names) <= set(SCHEMA.names):
            raise ValueError("it holds columns of a later version")
        stamp = {"split": split, "step": step}
        yield from _tables({**row, **stamp} for row in _rows(file))
    except _READ_ERRORS as error:
        raise _UnreadableError(str(error)) from error


# --- writing ---


def _rewrite(path: Path, groups: Sequence[TrajectoryGroup], *, split: str, step: int) -> int:
    """Replace a file by its own rows and those of the groups."""
    last_log = last_group = -1
    with path.open("rb") as source, replacing(path) as target, _writer(target) as writer:
        for table in _existing_tables(source, split, step):
            last_log = max(last_log, _highest(table["log_index"]))
            last_group = max(last_group, _highest(table["group_index"]))
            writer.write_table(table)
        stamp = {"split": split, "step": step, "log_index": last_log + 1}
        _write_groups(writer, groups, stamp, first_group_index=last_group + 1)
    return last_log + 1


def _highest(column: pa.ChunkedArray) -> int:
    value: int | None = pc.max(column).as_py()
    return -1 if value is None else value


def _write(
    path: Path,
    groups: Sequence[TrajectoryGroup],
    *,
    split: str | None,
    step: int | None,
    move_old_to: Path | None = None,
) -> int:
    """Write a file of these groups alone."""
    with replacing(path, move_old_to) as target, _writer(target) as writer:
        _write_groups(writer, groups, {"split": split, "step": step, "log_index": 0})
    return 0


def _write_groups(
    writer: pq.ParquetWriter,
    groups: Sequence[TrajectoryGroup],
    stamp: dict[str, Any],
    first_group_index: int = 0,
) -> None:
    # Numbers of groups go on from log to log: upstream's reader knows no other key.
    rows = (
        {**row, **stamp}
        for i, group in enumerate(groups)
        for row in encode_group(group, first_group_index + i, f"group {i}")
    )
    for table in _tables(rows):
        writer.write_table(table)


def _tables(rows: Iterable[dict[str, Any]]) -> Iterator[pa.Table]:
    """Cut rows into tables bounded in rows and in text."""
    pending: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        pending.append(row)
        size += _size(row)
        if len(pending) >= _ROWS_PER_GROUP or size >= _CHARACTERS_PER_GROUP:
            yield pa.Table.from_pylist(pending, schema=SCHEMA)
            pending, size = [], 0
    if pending:
        yield pa.Table.from_pylist(pending, schema=SCHEMA)


def _size(row: dict[str, Any]) -> int:
    """Estimate the memory that a row takes, in characters of text."""
    histories = [history["messages"] for history in row.get("histories") or []]
    structs = itertools.chain(row.get("messages") or [], *histories)
    size = len(row.get("metadata") or "") + len(row.get("extra") or "")
    for struct in structs:
        for column in ("content", "content_parts", "tool_calls", "extra"):
            size += len(struct.get(column) or "")
        for column in ("token_ids", "prompt_suffix", "logprobs"):
            size += _CHARACTERS_PER_TOKEN * len(struct.get(column) or ())
    return size


def _writer(target: IO[bytes]) -> pq.ParquetWriter:
    return pq.ParquetWriter(target, SCHEMA, compression="zstd")


def _free_name_beside(path: Path) -> Path:
    # Not ending in .parquet, so that a scan of the directory does not meet it.
    names = (path.with_name(f"{path.name}.unreadable-{i}") for i in itertools.count(1))
    return next(name for name in names if not name.exists())
