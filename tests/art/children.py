"""Programs that a test runs in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# What a machine looks like where these packages were never installed.
WITHOUT = """
import sys
from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        blocked = name.partition(".")[0] in BLOCKED
        return None if blocked else PathFinder.find_spec(name, path, target)

sys.meta_path = [Without if finder is PathFinder else finder for finder in sys.meta_path]
"""


def without(*packages: str) -> str:
    """Return the first lines of a program that is to find none of these packages."""
    return f"BLOCKED = {packages!r}\n{WITHOUT}"


def start(program: str, *arguments: str | Path) -> subprocess.Popen[str]:
    """Start a program where every warning is an error and the environment names no sink."""
    environment = {name: value for name, value in os.environ.items() if "WANDB" not in name}
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", program, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment | {"TQDM_DISABLE": "1"},
    )


def run(program: str, *arguments: str | Path) -> str:
    """Run a program to its end; it must succeed and leave nothing on stderr. Return what it printed."""
    with start(program, *arguments) as process:
        output, errors = process.communicate()
    assert errors == "", errors
    assert process.returncode == 0, output
    return output
