"""Disks that break on demand, and can be mended: full ones and read-only ones.

For child processes only: they change limits, users and mounts of the process that they are made in.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# The room that a full disk leaves at the end of a file: less than a line, so that it takes half of one.
ROOM_LEFT = 30
_NOBODY = 65534
# In namespaces of its own a process may mount, on most machines, and no mount outlives it.
PRIVATE_MOUNTS = ["unshare", "--mount", "--map-root-user"]


class Disk(Protocol):
    """A directory that can be made to refuse writes.

    Attributes:
        directory: Where to write.
        names_file: Its errors name the file. A disk that allows no writes at all refuses the lock before.
        breaks_in_train: It can break while a train holds its lock.
        advice: What an error must tell the user to do.
    """

    directory: Path
    names_file: bool
    breaks_in_train: bool
    advice: str

    def break_down(self, path: Path) -> None:
        """Refuse all writes from now on, except for ROOM_LEFT bytes at the end of one file."""

    def mend(self) -> None:
        """Work again; repeatable."""


class LimitedFiles:
    """As good as a full disk: no file may grow. Works everywhere."""

    names_file = True
    breaks_in_train = True
    advice = "free some disk space|raise the file size limit"

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def break_down(self, path: Path) -> None:
        size = path.stat().st_size if path.exists() else 0
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + ROOM_LEFT, self._limits[1]))

    def mend(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self._limits)


class FullDisk:
    """A small file system in memory, filled to the last block."""

    names_file = True
    breaks_in_train = True
    advice = "free some disk space"

    def __init__(self, directory: Path) -> None:
        self.directory = _mounted_at(directory)
        self._ballast = self.directory / "ballast"

    def break_down(self, path: Path) -> None:
        if path.suffix == ".jsonl" and path.exists():
            block = os.statvfs(path).f_bsize
            blanks = -(path.stat().st_size + ROOM_LEFT) % block
            with path.open("ab") as file:  # blank lines count for nothing
                file.write(b"\n" * blanks)
        with self._ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass

    def mend(self) -> None:
        self._ballast.unlink(missing_ok=True)


class ReadOnlyDisk:
    """A file system that turns read-only, as one does after an error of the device."""

    names_file = False
    breaks_in_train = False  # the kernel waits for open files
    advice = "make the file system writable"

    def __init__(self, directory: Path) -> None:
        self.directory = _mounted_at(directory)

    def break_down(self, path: Path) -> None:
        self._remount("ro")

    def mend(self) -> None:
        self._remount("rw")

    def _remount(self, mode: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{mode}", self.directory], check=True)


class ForbiddenDirectory:
    """A directory that the user may read and not write. Root may write anything, so root becomes another user."""

    names_file = False
    breaks_in_train = True
    advice = "give this user access"

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._user = os.geteuid()

    def break_down(self, path: Path) -> None:
        self._change_modes("a-w,a+rX")
        if self._user == 0:
            os.seteuid(_NOBODY)

    def mend(self) -> None:
        os.seteuid(self._user)
        self._change_modes("u+w")

    def _change_modes(self, modes: str) -> None:
        subprocess.run(["chmod", "--recursive", modes, self.directory], check=True)


KINDS: dict[str, Callable[[Path], Disk]] = {
    "limit": LimitedFiles,
    "full": FullDisk,
    "read-only": ReadOnlyDisk,
    "forbidden": ForbiddenDirectory,
}


def _mounted_at(directory: Path) -> Path:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", directory], check=True)
    return directory


def can_mount() -> bool:
    """Tell whether a process of ours may mount a file system that it alone sees."""
    if shutil.which("unshare") is None:
        return False
    command = [*PRIVATE_MOUNTS, "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
