"""Writes that are whole or not at all, even when the process dies in the middle or the disk is full."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
from typing import IO, TYPE_CHECKING, Any

from art.books.lock import hold
from art.books.os_errors import log_error
from art.errors import LogError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def write_bytes(path: Path, data: bytes) -> None:
    """Replace a file; readers and later starts see the old content or the new, never a part.

    Missing parent directories are made. Concurrent calls use temporary files of their own; the last complete
    one wins.

    Raises:
        LogError: The file could not be written; an older file at `path` is unchanged.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(data)
    except OSError as error:
        raise log_error("write", path, error) from error


@contextlib.contextmanager
def replacing(path: Path, move_old_to: Path | None = None) -> Iterator[IO[bytes]]:
    """Open a new file beside `path` that takes its place, durably, when the block ends without an error.

    For what is too large to be held in memory; `write_bytes` otherwise.

    Args:
        path: The file; its directory exists.
        move_old_to: Where the old file goes, instead of being replaced.

    Raises:
        OSError: As the operating system raises it; an older file at `path` is unchanged.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if move_old_to is not None:
            path.rename(move_old_to)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)  # gone already, unless something failed
    sync_directory(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Replace a file by the indented JSON of a value; see `write_bytes`.

    Raises:
        TypeError: The value is not JSON; nothing was written.
        LogError: The file could not be written.
    """
    # ASCII escapes: text of language models can hold lone surrogates, which UTF-8 cannot.
    write_bytes(path, (json.dumps(value, indent=2) + "\n").encode("ascii"))


def append_line(path: Path, line: bytes, *, durable: bool = False) -> None:
    """Append one line to a file with one write, serialised with other writers of the same file.

    A file that does not end in a newline (its last writer died) gets one first, so that the fragment cannot
    swallow this line. A failed write is rolled back.

    Args:
        path: The file; it and its parent directories are made if missing.
        line: Without its newline.
        durable: Wait until the line is on the disk.

    Raises:
        LogError: The line could not be written; the file is as it was.
    """
    if b"\n" in line:
        raise ValueError(f"a line for {path} holds a newline")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            with hold(descriptor, path):
                is_new = _append(descriptor, line)
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except LogError:
        raise
    except OSError as error:
        raise log_error("append to", path, error) from error
    if durable and is_new:
        sync_directory(path.parent)


def _append(descriptor: int, line: bytes) -> bool:
    """Append to a locked file and return whether it was empty before."""
    size = os.fstat(descriptor).st_size
    is_torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
    data = (b"\n" if is_torn else b"") + line + b"\n"
    written = os.write(descriptor, data)
    if written < len(data):
        # Only where nobody without our lock (another program) has appended in between.
        if os.fstat(descriptor).st_size == size + written:
            os.ftruncate(descriptor, size)
        raise OSError(errno.ENOSPC, f"only {written} of {len(data)} bytes fit")
    return size == 0


def sync_directory(directory: Path) -> None:
    """Make a rename or a new file in a directory durable, where the file system can."""
    # Some network file systems refuse to sync a directory; the file itself is synced.
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
