"""The only reader and writer of trajectory parquet. Imports pyarrow: import this module lazily.

A file holds the groups of one split and step. It is replaced as a whole, by a new file that starts with the
rows of the old one; memory holds one row group at a time. The callers hold the directory's write lock.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from art.books.atomic import replacing
from art.books.gc_pause import gc_paused
from art.books.os_errors import log_error
from art.books.read_ahead import read_ahead
from art.books.trajectory_decoder import decode_groups
from art.books.trajectory_encoder import encode_rows
from art.books.trajectory_rows import group_rows
from art.books.trajectory_schema import COLUMNS_WITH_DICTIONARY, LOGPROB_COLUMNS, SCHEMA
from art.books.trajectory_upstream import tables_of_upstream
from art.errors import InvalidTrajectoriesError, LogError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from art.trajectories import TrajectoryGroup

logger = logging.getLogger(__name__)

_ROWS_PER_GROUP = 512
_BYTES_PER_GROUP = 64 * 2**20  # images in messages would make 512 rows too much for memory
_REPEATED = frozenset({"calls", "metrics_map"})
_MAX_STEP = 2**31 - 1

# What pyarrow, json, pydantic and the decoder raise on a file that is torn, corrupt or of another kind.
_READ_ERRORS = (
    OSError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    RecursionError,
    pa.ArrowNotImplementedError,
)


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
        with _opened(path) as source, gc_paused():
            file = pq.ParquetFile(source)
            is_ours = file.schema_arrow.equals(SCHEMA)
            return decode_groups(
                _tables(file, {}, columns=_columns_to_decode(file) if is_ours else None)
            )
    except FileNotFoundError:
        raise
    except _READ_ERRORS as error:
        raise LogError(
            f"{path} cannot be read as a trajectory file: {error}; it may be torn or of another kind"
        ) from error


# --- reading ---


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[pa.NativeFile]:
    """Open a file for Arrow to read without Python, for whose lock each read would have to wait."""
    # Python's own `open` is there for its errors, which tell more.
    with path.open("rb"), pa.OSFile(os.fsencode(path), "rb") as source:
        yield source


def _tables(
    file: pq.ParquetFile, stamp: Mapping[str, Any], *, columns: list[str] | None = None
) -> Iterator[pa.Table]:
    """Yield the rows of a file of any known format, as tables of our schema.

    Args:
        file: The file.
        stamp: The split and the step of the file, where known; only upstream's files do not tell.
        columns: Paths of the columns to read, where not all of them are wanted.
    """
    names = file.schema_arrow.names
    if "log_index" not in names:
        yield from tables_of_upstream(file.iter_batches(_ROWS_PER_GROUP), names, stamp)
        return
    groups = range(file.num_row_groups)

    def read(i: int) -> pa.Table:
        # One thread reads as fast as these are decoded; more of them would only take its processor away.
        return file.read_row_group(i, columns, use_threads=False)

    for table in read_ahead(read, groups, 1):
        table = _with_every_column(table)  # noqa: PLW2901 - the same rows
        # Other programs that wrote the rows again may have chosen other types of text and lists.
        yield table if columns else table.cast(SCHEMA)


def _with_every_column(table: pa.Table) -> pa.Table:
    """Add the columns that a table does not have, as an earlier version's, and order them."""
    names = set(table.column_names)
    for field in SCHEMA:
        if field.name not in names:
            table = table.append_column(field, pa.nulls(len(table), field.type))
    return table.select(SCHEMA.names)


def _columns_to_decode(file: pq.ParquetFile) -> list[str]:
    """Return the columns without those that only repeat others, for queries."""
    paths = [file.schema.column(i).path for i in range(len(file.schema))]
    return [path for path in paths if _REPEATED.isdisjoint(path.split("."))]


def _existing_tables(source: pa.NativeFile, split: str, step: int) -> Iterator[pa.Table]:
    """Yield the rows of an existing file as tables of our schema.

    Raises:
        _UnreadableError: It cannot be read, or holds columns that would be lost.
    """
    try:
        file = pq.ParquetFile(source)
        names = file.schema_arrow.names
        if "log_index" in names and not set(names) <= set(SCHEMA.names):
            raise ValueError("it holds columns of a later version")
        yield from _tables(file, {"split": split, "step": step})
    except _READ_ERRORS as error:
        raise _UnreadableError(str(error)) from error


# --- writing ---


def _rewrite(path: Path, groups: Sequence[TrajectoryGroup], *, split: str, step: int) -> int:
    """Replace a file by its own rows and those of the groups."""
    last_log = last_group = -1
    with _opened(path) as source, replacing(path) as target, _writer(target) as writer:
        for table in _existing_tables(source, split, step):
            last_log = max(last_log, _highest(table["log_index"]))
            last_group = max(last_group, _highest(table["group_index"]))
            writer.write_table(table)
        stamp = {"split": split, "step": step, "log_index": last_log + 1}
        _write_groups(writer, groups, stamp, first_group_index=last_group + 1)
    return last_log + 1


def _highest(column: pa.ChunkedArray) -> int:
    # Not by pyarrow.compute, whose import takes as long as everything else that a first log needs.
    return max((value for value in column.to_pylist() if value is not None), default=-1)


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
    rows = itertools.chain.from_iterable(
        group_rows(group, first_group_index + i, f"group {i}") for i, group in enumerate(groups)
    )
    # While one row group is compressed, which leaves Python free, the next one is put together.
    with gc_paused(), ThreadPoolExecutor(1, "art-parquet") as thread:
        written: Future[None] | None = None
        for table in _in_row_groups(encode_rows(rows, stamp)):
            if written is not None:
                written.result()
            written = thread.submit(writer.write_table, table)
        if written is not None:
            written.result()


def _in_row_groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Join tables to row groups that are bounded in rows and in memory."""
    pending: list[pa.Table] = []
    num_rows = num_bytes = 0
    for table in tables:
        pending.append(table)
        num_rows += len(table)
        num_bytes += table.nbytes
        if num_rows >= _ROWS_PER_GROUP or num_bytes >= _BYTES_PER_GROUP:
            yield pa.concat_tables(pending)
            pending, num_rows, num_bytes = [], 0, 0
    if pending:
        yield pa.concat_tables(pending)


@contextlib.contextmanager
def _writer(target: IO[bytes]) -> Iterator[pq.ParquetWriter]:
    """Let Arrow write to a new file, without Python, for whose lock each of many small writes would have to wait."""
    try:
        with pa.OSFile(os.fsencode(target.name), "wb") as sink, _parquet_writer(sink) as writer:
            yield writer
    except OSError as error:
        if error.errno:  # in the words of the operating system, not Arrow's
            raise OSError(error.errno, os.strerror(error.errno)) from error
        raise


def _parquet_writer(sink: pa.NativeFile) -> pq.ParquetWriter:
    return pq.ParquetWriter(
        sink,
        SCHEMA,
        compression="zstd",
        compression_level=3,
        use_dictionary=COLUMNS_WITH_DICTIONARY,
        dictionary_pagesize_limit=_BYTES_PER_GROUP,
        column_encoding=dict.fromkeys(LOGPROB_COLUMNS, "BYTE_STREAM_SPLIT"),
    )


def _free_name_beside(path: Path) -> Path:
    # Not ending in .parquet, so that a scan of the directory does not meet it.
    names = (path.with_name(f"{path.name}.unreadable-{i}") for i in itertools.count(1))
    return next(name for name in names if not name.exists())
