"""Full and read-only disks: the scenarios of `broken_disk.py`, in a process for each kind of disk.

A file system of our own takes the right to mount one; where there is none, a file size limit and a directory of
another user do the same.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.art.crash.disks import KINDS, PRIVATE_MOUNTS, can_mount

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.crash

ROOT = Path(__file__).resolve().parents[3]
MOUNTED = {
    "full": "limit",
    "read-only": "forbidden",
}  # and what stands in where nothing can be mounted


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory that another user can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize("kind", KINDS)
def test_a_broken_disk_raises_and_spoils_nothing(kind: str, directory: Path) -> None:
    """The error says what to do, all earlier files stay as they are, and a mended disk is written to again."""
    prefix: list[str] = []
    if kind in MOUNTED:
        kind, prefix = (kind, PRIVATE_MOUNTS) if can_mount() else (MOUNTED[kind], [])
    command = [*prefix, sys.executable, "-m", "tests.art.crash.broken_disk", kind, str(directory)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
