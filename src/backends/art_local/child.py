"""The child's side of a supervised process: config and commands in over stdin, events out over stdout.

Lines are JSON objects. The first line in is the configuration; it holds the API key, which therefore never
shows in a process list. When stdin ends the parent is gone, and the process ends at once: parent-death
signals would fire when the *thread* that started the child ends, and a pid that is polled may be reused.

A child may also be several processes that a launcher in between has started, all with the same stdin and
stdout. One of them speaks for all; each watches for the parent's end, and for the launcher's.
"""

from __future__ import annotations

import json
import os
import queue
import select
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

UNDER_LAUNCHER = "--under-launcher"
"""The argument that tells a process that it is one of several; the launcher's environment numbers them."""

_WATCH_MS = 200


@dataclass
class Channel:
    """The open channel to the parent.

    Attributes:
        config: What the parent sent first; it holds the API key.
        commands: Later lines, in order.
    """

    config: dict[str, Any] = field(repr=False)
    commands: queue.Queue[dict[str, Any]]
    _out: IO[str]
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def send(self, event: dict[str, Any]) -> None:
        """Send one event to the parent. May be called from any thread."""
        line = json.dumps(event)
        with self._lock:
            self._out.write(line + "\n")
            self._out.flush()


def open_channel() -> Channel:
    """Read the configuration from stdin and start watching for the parent's end.

    Stray prints of libraries go to stderr from here on, so that they cannot corrupt the events.
    """
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    config = json.loads(sys.stdin.readline() or "{}")
    commands: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_read_commands, args=(commands,), name="stdin", daemon=True).start()
    return Channel(config, commands, out)


def silent_channel() -> Channel:
    """Return the channel of a process that another one speaks for: nothing comes in, nothing goes out."""
    out = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - as long as the process
    os.dup2(2, 1)
    return Channel({}, queue.Queue(), out)


def end_with_launcher() -> None:
    """End this process when its launcher ends, or the parent that holds the other side of stdin.

    A launcher that is killed takes nothing with it, and it does not look after its own parent.
    """
    launcher = os.getppid()
    threading.Thread(target=_watch, args=(launcher,), name="launcher", daemon=True).start()


def _watch(launcher: int) -> None:
    stdin = select.poll()
    stdin.register(0, 0)  # its end only: to read it is another process's business
    while not stdin.poll(_WATCH_MS) and os.getppid() == launcher:
        pass
    os._exit(0)


def _read_commands(commands: queue.Queue[dict[str, Any]]) -> None:
    for line in sys.stdin:
        commands.put(json.loads(line))
    # Not sys.exit: this is not the main thread, and nothing may hold the process up.
    os._exit(0)
