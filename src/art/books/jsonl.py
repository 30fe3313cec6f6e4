"""Reads an append-only file of JSON objects, one a line, as far as its lines can be read."""

from __future__ import annotations

import json
import logging
import os
import threading
from typing import IO, TYPE_CHECKING, Any, Generic, TypeVar

from art.books.os_errors import log_error

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

logger = logging.getLogger(__name__)

RowT = TypeVar("RowT")

_INT64 = range(-(2**63), 2**63)  # what a column of a frame can hold
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# What power loss and editors leave around a row.
_PADDING = b" \t\r\n\x00"
# So many bytes before the offset are compared to see that the file is still the one that was read.
_FINGERPRINT_BYTES = 64


def as_step(value: object) -> int | None:
    """Return a JSON value as a step number (2.0 counts as 2), or None where it is none."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if value in _INT64 else None


class JsonLinesReader(Generic[RowT]):
    """An incremental reader: each call reads only what was appended since the last one.

    It starts over when the file was replaced, shortened or rewritten. Lines that cannot be read (torn, not
    UTF-8, not an object, refused by `parse`) are skipped and counted, with one warning per reader. A last line
    without a newline counts once it is complete JSON. Safe to use from several threads.

    Attributes:
        num_skipped: Damaged lines that the latest call found in the file.

    Args:
        path: The file; it may be missing, which is the same as empty.
        parse: Turns an object and the byte offset of its line into a row; None where it is no row.
    """

    def __init__(self, path: Path, parse: Callable[[dict[str, Any], int], RowT | None]) -> None:
        self._path = path
        self._parse = parse
        self._lock = threading.Lock()
        self._has_warned = False
        self._start_over()

    def rows(self) -> list[RowT]:
        """Return every row of the file in order.

        Raises:
            LogError: The file is there but the operating system does not let us read it.
        """
        with self._lock:
            try:
                with self._path.open("rb") as file:
                    rows = self._read(file)
            except FileNotFoundError:
                self._start_over()
                return []
            except OSError as error:
                raise log_error("read", self._path, error) from error
            self._warn_once()
            return rows

    def _start_over(self) -> None:
        self._rows: list[RowT] = []
        self._offset = 0  # of the first line that is not in `_rows` yet
        self._identity: tuple[int, int] | None = None
        self._fingerprint = b""
        self._num_damaged = 0
        self.num_skipped = 0

    def _read(self, file: IO[bytes]) -> list[RowT]:
        status = os.fstat(file.fileno())
        if self._identity != (status.st_dev, status.st_ino) or not self._is_continued(file):
            self._start_over()
            self._identity = (status.st_dev, status.st_ino)
        file.seek(self._offset)
        unfinished: list[RowT] = []
        for line in file:
            row, is_damaged = self._parse_line(line)
            self.num_skipped = self._num_damaged + is_damaged
            if not line.endswith(b"\n"):
                # Its writer died, or is at work: read again next time.
                unfinished = [row] if row is not None else []
                break
            if row is not None:
                self._rows.append(row)
            self._num_damaged += is_damaged
            self._offset += len(line)
        start = max(0, self._offset - _FINGERPRINT_BYTES)
        self._fingerprint = os.pread(file.fileno(), self._offset - start, start)
        return self._rows + unfinished

    def _is_continued(self, file: IO[bytes]) -> bool:
        file.seek(self._offset - len(self._fingerprint))
        return file.read(len(self._fingerprint)) == self._fingerprint

    def _parse_line(self, line: bytes) -> tuple[RowT | None, bool]:
        """Return the row, if there is one, and whether the line is damaged."""
        text = line.removeprefix(_BYTE_ORDER_MARK).strip(_PADDING)
        if not text:
            return None, b"\x00" in line
        try:
            value = json.loads(text.decode())
        except (ValueError, RecursionError):  # not UTF-8 and not JSON are ValueErrors
            return None, True
        row = self._parse(value, self._offset) if isinstance(value, dict) else None
        return row, row is None

    def _warn_once(self) -> None:
        if self.num_skipped and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "%s: skipped %d damaged line(s), as a killed process or a full disk leaves them; "
                "all other lines are used",
                self._path,
                self.num_skipped,
            )
