"""What a process holds: tasks, threads, child processes, open files. To compare before and after."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import stat
import subprocess
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_POLL_S = 0.05
# The event loop's own pool: its threads are kept for the next call.
_LOOPS_OWN = "asyncio_"
_KINDS = ((stat.S_ISSOCK, "socket"), (stat.S_ISFIFO, "pipe"), (stat.S_ISREG, "file"))


@dataclass(frozen=True)
class Held:
    """What a process holds at one moment.

    Attributes:
        tasks: Tasks of the running event loop.
        threads: Threads.
        children: Child processes, by process id, with the name of the program.
        files: Open file descriptors, with what each leads to.
    """

    tasks: frozenset[asyncio.Task[Any]]
    threads: frozenset[threading.Thread]
    children: dict[int, str]
    files: dict[int, str]

    @classmethod
    def now(cls) -> Held:
        """Look."""
        return cls(
            tasks=frozenset(asyncio.all_tasks()),
            threads=frozenset(
                t for t in threading.enumerate() if not t.name.startswith(_LOOPS_OWN)
            ),
            children=_children(),
            files=_open_files(),
        )

    def beyond(self, before: Held) -> list[str]:
        """Tell what is held now and was not before, in words that are the same in every run."""
        tasks = [f"the task {_plain(_coroutine_of(t))}" for t in self.tasks - before.tasks]
        threads = [f"the thread {_plain(t.name)!r}" for t in self.threads - before.threads]
        new = self.children.keys() - before.children
        children = [f"the child process {self.children[pid]!r}" for pid in new]
        return sorted([*tasks, *threads, *children, *self._files_beyond(before)])

    def _files_beyond(self, before: Held) -> list[str]:
        growth = len(self.files) - len(before.files)
        if growth <= 0:
            return []
        # Descriptors are used again, so only what they lead to tells the new ones.
        new = Counter(self.files.values()) - Counter(before.files.values())
        return [f"an open {target.split()[0]}" for target in sorted(new.elements())[:growth]]


async def left_beyond(before: Held, grace_s: float) -> list[str]:
    """Return what is held beyond what was, when it is nothing, or after some seconds of grace."""
    end = time.monotonic() + grace_s
    while True:
        gc.collect()
        left = Held.now().beyond(before)
        if not left or time.monotonic() > end:
            return left
        await asyncio.sleep(_POLL_S)


def _coroutine_of(task: asyncio.Task[Any]) -> str:
    coroutine: Any = task.get_coro()
    return str(getattr(coroutine, "__qualname__", type(coroutine).__name__))


def _plain(name: str) -> str:
    """Leave out what differs from run to run."""
    return re.sub(r"\d+", "N", name)


def _open_files() -> dict[int, str]:
    found = {}
    for name in os.listdir("/dev/fd"):  # noqa: PTH208 - numbers, not paths
        try:
            status = os.fstat(int(name))
        except OSError:
            continue  # the listing's own descriptor
        kind = next((kind for is_a, kind in _KINDS if is_a(status.st_mode)), "device")
        found[int(name)] = f"{kind} {status.st_dev}:{status.st_ino}"
    return found


def _children() -> dict[int, str]:
    rows = _rows_of_proc() if Path("/proc/self/stat").exists() else _rows_of_ps()
    return {pid: name for pid, parent, name in rows if parent == os.getpid() and name != "ps"}


def _rows_of_proc() -> Iterator[tuple[int, int, str]]:
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue  # it ended meanwhile
        name, _, rest = text.partition("(")[2].rpartition(")")
        yield int(path.parent.name), int(rest.split()[1]), name


def _rows_of_ps() -> Iterator[tuple[int, int, str]]:
    command = ["/bin/ps", "-A", "-o", "pid=,ppid=,ucomm="]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603
    for line in listing.splitlines():
        pid, parent, name = line.split(None, 2)
        yield int(pid), int(parent), name.strip()
