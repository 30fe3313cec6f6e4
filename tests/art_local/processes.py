"""What tests need to know about processes, read from /proc."""

from __future__ import annotations

import time
from pathlib import Path


def children_of(pid: int) -> list[int]:
    """Living child processes of our own modules; helper processes of Python itself do not count."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            command = (stat.parent / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == pid and fields[0] != "Z" and b"art_local." in command:
            found.append(int(stat.parent.name))
    return found


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def wait_until_gone(pids: list[int], timeout_s: float = 20.0) -> list[int]:
    """Wait for processes to end; returns those that did not."""
    deadline_s = time.monotonic() + timeout_s
    while (left := [pid for pid in pids if is_alive(pid)]) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return left
