"""The child's side of a supervised process: config and commands in over stdin, events out over stdout.

Lines are JSON objects. The first line in is the configuration; it holds the API key, which therefore never
shows in a process list. When stdin ends the parent is gone, and the process ends at once: parent-death
signals would fire when the *thread* that started the child ends, and a pid that is polled may be reused.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from dataclasses import dataclass, field
from typing import IO, Any


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


def _read_commands(commands: queue.Queue[dict[str, Any]]) -> None:
    for line in sys.stdin:
        commands.put(json.loads(line))
    # Not sys.exit: this is not the main thread, and nothing may hold the process up.
    os._exit(0)
