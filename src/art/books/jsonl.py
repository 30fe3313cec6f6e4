"""Follows an append-only file of JSON objects, one a line, as far as its lines can be read."""

from __future__ import annotations

import io
import json
import logging
import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from art.books.jsonl_blocks import end_of_line, end_of_lines, read_blocks, strict_frame
from art.books.os_errors import log_error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import polars as pl

logger = logging.getLogger(__name__)

RowT = TypeVar("RowT")

INT64 = range(-(2**63), 2**63)  # what a column of a frame can hold
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# What power loss and editors leave around a row.
_PADDING = b" \t\r\n\x00"
# So many bytes before the offset are compared to see that the file is still the one that was read.
_FINGERPRINT_BYTES = 64
# Damage stays in a file, which has several readers: it is told once.
_warned_of: set[str] = set()


def as_step(value: object) -> int | None:
    """Return a JSON value as a step number (2.0 counts as 2), or None where it is none."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if value in INT64 else None


class LineSink(ABC):
    """Takes the lines of a file in order, each once."""

    @property
    def columns(self) -> Mapping[str, type]:
        """The keys that it needs, each an int or a float; if there are any, long stretches come as frames."""
        return {}

    def frame(self, data: bytes) -> pl.DataFrame | None:
        """Return lines as the frame that `add_frame` takes, None where they must come one by one."""
        return strict_frame(data, self.columns)

    @abstractmethod
    def start_over(self) -> None:
        """Forget all lines: they come again, or the file is another one."""

    @abstractmethod
    def add_line(self, line: dict[str, Any], offset: int) -> bool:
        """Take the object of the line at a byte offset; return False where it is no row of this file."""

    def add_frame(self, frame: pl.DataFrame, start: int, stop: int) -> int | None:
        """Take the lines of a range of bytes; return how many are no rows, or None to get them one by one.

        A value that is null or missing is null. Of a key that stands twice in a line a frame has the first
        value, `add_line` the last; nobody we know writes such lines.
        """
        raise NotImplementedError

    def add_lines(self, data: bytes) -> int | None:  # noqa: ARG002 - for those that override it
        """Take a long stretch of lines of which there is no frame; return the same."""
        return None


class JsonLinesReader:
    """Hands the lines of a file to a sink: each `refresh` only what was appended since the last one.

    It starts over when the file was replaced, shortened or rewritten. Lines that cannot be read (torn, not
    UTF-8, not an object, refused by the sink) are skipped and counted, with one warning per file. A last line
    without a newline counts once it is complete JSON. Threads take turns: that is up to the caller.

    Attributes:
        num_skipped: Damaged lines that the latest call found in the file.

    Args:
        path: The file; it may be missing, which is the same as empty.
        sink: What takes the lines.
    """

    # Less than this is read line by line, without polars, whose import costs more.
    min_frame_bytes: ClassVar[int] = 1 << 20
    block_bytes: ClassVar[int] = 1 << 24

    def __init__(self, path: Path, sink: LineSink) -> None:
        self._path = path
        self._sink = sink
        self.start_over()

    def start_over(self) -> None:
        """Forget what was read; the next `refresh` hands over all lines again."""
        self._sink.start_over()
        self._offset = 0  # of the first byte that the sink does not know
        self._is_open = False  # whether the last line that it knows has no newline yet
        self._identity: tuple[int, int] | None = None
        self._version = (0, 0)  # size and time of the file when it was read last
        self._fingerprint = b""
        self._num_damaged = 0
        self.num_skipped = 0

    def refresh(self) -> None:
        """Hand over what is new.

        Raises:
            LogError: The file is there but the operating system does not let us read it.
        """
        try:
            with self._path.open("rb", buffering=0) as file:
                self._follow(file.fileno())
        except FileNotFoundError:
            self.start_over()
        except OSError as error:
            raise log_error("read", self._path, error) from error
        self._warn_once()

    def _follow(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        identity = (status.st_dev, status.st_ino)
        version = (status.st_size, status.st_mtime_ns)
        # Of the same size and yet written to: somebody edited it.
        is_edited = status.st_size == self._version[0] and version != self._version
        if (
            self._identity != identity
            or is_edited
            or not self._is_continued(descriptor, status.st_size)
        ):
            self.start_over()
            self._identity = identity
        self._version = version
        stop = end_of_lines(descriptor, self._offset, status.st_size)
        self._read_lines(descriptor, stop)
        self._read_last_line(os.pread(descriptor, status.st_size - self._offset, self._offset))
        start = max(0, self._offset - _FINGERPRINT_BYTES)
        self._fingerprint = os.pread(descriptor, self._offset - start, start)

    def _is_continued(self, descriptor: int, end: int) -> bool:
        size = len(self._fingerprint)
        if os.pread(descriptor, size, self._offset - size) != self._fingerprint:
            return False
        if not self._is_open:
            return True
        # Anything that follows on the same line makes the row that was taken a damaged line.
        stop = end_of_line(descriptor, self._offset, end)
        return not os.pread(descriptor, stop - self._offset, self._offset).strip(_PADDING)

    def _read_lines(self, descriptor: int, stop: int) -> None:
        is_long = stop - self._offset >= self.min_frame_bytes
        parse = self._sink.frame if is_long and self._sink.columns else None
        for block in read_blocks(descriptor, self._offset, stop, self.block_bytes, parse):
            num_refused = None
            if block.frame is not None:
                num_refused = self._sink.add_frame(block.frame, block.start, block.stop)
            elif is_long:
                num_refused = self._sink.add_lines(block.data)
            if num_refused is None:
                num_refused = self._add_lines(block.data, block.start)
            self._num_damaged += num_refused
            self._offset = block.stop
            self._is_open = False
        self.num_skipped = self._num_damaged

    def _add_lines(self, data: bytes, offset: int) -> int:
        num_damaged = 0
        for line in io.BytesIO(data):
            num_damaged += not self._add_line(line, offset)
            offset += len(line)
        return num_damaged

    def _add_line(self, line: bytes, offset: int) -> bool:
        """Hand over a line; return whether it is undamaged."""
        value, is_blank = parse_line(line)
        return is_blank or (value is not None and self._sink.add_line(value, offset))

    def _read_last_line(self, line: bytes) -> None:
        """Take what stands behind the last newline if it is a row; its writer died, or is at work."""
        value, is_blank = parse_line(line)
        if is_blank:
            return
        if value is not None and self._sink.add_line(value, self._offset):
            self._offset += len(line)
            self._is_open = True
        else:
            self.num_skipped = self._num_damaged + 1

    def _warn_once(self) -> None:
        if self.num_skipped and str(self._path) not in _warned_of:
            _warned_of.add(str(self._path))
            logger.warning(
                "%s: skipped %d damaged line(s), as a killed process or a full disk leaves them; "
                "all other lines are used",
                self._path,
                self.num_skipped,
            )


def parse_line(line: bytes) -> tuple[dict[str, Any] | None, bool]:
    """Return the object on a line, None if there is none, and whether the line is blank."""
    text = line.removeprefix(_BYTE_ORDER_MARK).strip(_PADDING)
    if not text:
        return None, b"\x00" not in line
    try:
        value = json.loads(text.decode())
    except (ValueError, RecursionError):  # not UTF-8 and not JSON are ValueErrors
        return None, False
    return (value if isinstance(value, dict) else None), False


class _RowList(LineSink, Generic[RowT]):
    def __init__(self, parse: Callable[[dict[str, Any], int], RowT | None]) -> None:
        self._parse = parse
        self.rows: list[RowT] = []

    def start_over(self) -> None:
        self.rows.clear()

    def add_line(self, line: dict[str, Any], offset: int) -> bool:
        row = self._parse(line, offset)
        if row is not None:
            self.rows.append(row)
        return row is not None


def read_rows(path: Path, parse: Callable[[dict[str, Any], int], RowT | None]) -> list[RowT]:
    """Return all rows of a file in order.

    Args:
        path: The file; it may be missing.
        parse: Turns an object and the byte offset of its line into a row; None where it is no row.

    Raises:
        LogError: The file is there but the operating system does not let us read it.
    """
    rows = _RowList(parse)
    JsonLinesReader(path, rows).refresh()
    return rows.rows
