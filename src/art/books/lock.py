"""Locks of a model directory: `write_lock` for the moment of a write, `train_lock` for a whole train call.

Both are `flock` locks on files that stay: the operating system releases them when their holder dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import time
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from art.books.os_errors import log_error
from art.errors import LogError, ModelBusy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.05
# Busy writers let go for a moment only; who looks more seldom than this hardly ever meets one.
_LONGEST_PAUSE_OF_WRITERS_S = 0.005
# Some cluster file systems are mounted without lock support. Working unlocked there beats not working.
_NO_LOCKS_HERE = {errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK}
# A holder writes its pid just after it got the lock, so the first look may come too early.
_LOOKS_AT_HOLDER = 3

# Train calls of this process by lock file, in order of arrival; the first one runs. Appending to a list and
# removing from it are atomic, so no lock is needed between threads.
_train_queues: dict[str, list[object]] = {}
_train_descriptors: set[int] = set()


def _forget_parents_locks() -> None:
    """Let go, in a forked child, of what its parent holds: else the child would hold it beyond the parent."""
    for descriptor in _train_descriptors:
        os.close(descriptor)
    _train_descriptors.clear()
    _train_queues.clear()


os.register_at_fork(after_in_child=_forget_parents_locks)


@contextmanager
def write_lock(path: Path, timeout_s: float = 60.0) -> Iterator[None]:
    """Hold the lock file of a model directory, against other threads and processes.

    Blocks, so call it in a worker thread. Not re-entrant.

    Raises:
        LogError: It could not be had within `timeout_s` seconds, or the file could not be opened.
    """
    descriptor = _open(path)
    try:
        with hold(descriptor, path, timeout_s):
            yield
    finally:
        os.close(descriptor)


@contextmanager
def hold(descriptor: int, path: Path, timeout_s: float = 60.0) -> Iterator[None]:
    """Hold the exclusive lock of an open file; `path` names it in errors."""
    deadline_s = time.monotonic() + timeout_s
    pause_s = _FIRST_PAUSE_S
    while not _try_lock(descriptor, path):
        if time.monotonic() >= deadline_s:
            raise LogError(
                f"{path} was locked by another writer for {timeout_s:g} s; find the process that holds it "
                f"(`fuser -v {path}`) and end or resume it"
            )
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_OF_WRITERS_S)
    try:
        yield
    finally:
        _unlock(descriptor)


@asynccontextmanager
async def train_lock(path: Path) -> AsyncIterator[None]:
    """Hold a model directory for a train call or a deletion; waits without blocking the event loop.

    Other calls of this process (any thread, any event loop) wait in order of arrival. Not re-entrant.

    Raises:
        ModelBusy: Another process holds it; raised at once, with that process's id.
        LogError: The lock file could not be opened.
    """
    queue = _queue_for(path)
    ticket = object()
    queue.append(ticket)
    try:
        # Polling, because no asyncio primitive works across event loops.
        while queue[0] is not ticket:  # noqa: ASYNC110
            await asyncio.sleep(_LONGEST_PAUSE_S)
        descriptor = await _hold_for_this_process(path)
        try:
            yield
        finally:
            _release_train_lock(descriptor)
    finally:
        queue.remove(ticket)


def _queue_for(path: Path) -> list[object]:
    return _train_queues.setdefault(os.path.realpath(path), [])


async def _hold_for_this_process(path: Path) -> int:
    descriptor = _open(path)
    is_ours = False
    try:
        for _ in range(_LOOKS_AT_HOLDER):
            is_ours = _try_lock(descriptor, path)
            if is_ours:
                _write_holder(descriptor)
                _train_descriptors.add(descriptor)
                return descriptor
            await asyncio.sleep(_LONGEST_PAUSE_S)
        holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
    finally:
        if not is_ours:
            os.close(descriptor)
    raise ModelBusy(
        f"{path.parent} is being trained or pruned by {holder or 'another process'}; "
        "wait for it to end, or end it, or choose another model name"
    )


def _write_holder(descriptor: int) -> None:
    # For the message of others only: a full disk must not stop a train here.
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on host {os.uname().nodename}\n".encode(), 0)


def _release_train_lock(descriptor: int) -> None:
    if descriptor not in _train_descriptors:
        return  # a forked child that unwinds its parent's stack
    _train_descriptors.discard(descriptor)
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
    _unlock(descriptor)
    os.close(descriptor)


def _open(path: Path) -> int:
    try:
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise log_error("open the lock file", path, error) from error


def _try_lock(descriptor: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS_HERE:
            raise log_error("lock", path, error) from error
        logger.warning("%s: this file system has no locks; run one process per model", path)
    return True


def _unlock(descriptor: int) -> None:
    # Explicitly, because closing is not enough while a forked child shares the descriptor.
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
