"""Checkpoint directories of the reference: `checkpoints/{step:04d}/weights.json`, whole or not there at all.

Each step of the work is a function of its own, so that a broken adapter can do one of them wrongly.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

WORK = ".reference"
_STEP = re.compile(r"\d{4,}")


def step_dir(directory: Path, step: int) -> Path:
    """Return the directory of a step."""
    return directory / f"{step:04d}"


def steps(directory: Path) -> list[int]:
    """Return the steps that exist, ascending."""
    with contextlib.suppress(FileNotFoundError):
        return sorted(
            int(path.name)
            for path in directory.iterdir()
            if _STEP.fullmatch(path.name) and path.is_dir() and not path.is_symlink()
        )
    return []


def load(directory: Path, step: int) -> float:
    """Return the weights of a checkpoint."""
    text = (step_dir(directory, step) / "weights.json").read_text()
    return float(json.loads(text)["weight"])


def save(directory: Path, step: int, weight: float) -> None:
    """Write a checkpoint, which appears by one rename; one that is there already is replaced."""
    unfinished = _work_path(directory)
    unfinished.mkdir(parents=True)
    with (unfinished / "weights.json").open("w") as file:
        json.dump({"weight": weight}, file)
        file.flush()
        os.fsync(file.fileno())
    target = step_dir(directory, step)
    replaced = _work_path(directory)
    with contextlib.suppress(FileNotFoundError):
        target.rename(replaced)
    unfinished.rename(target)
    shutil.rmtree(replaced, ignore_errors=True)


def remove(directory: Path, step: int) -> None:
    """Take a checkpoint out of the listing by one rename, then delete its files."""
    doomed = _work_path(directory)
    doomed.parent.mkdir(exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        step_dir(directory, step).rename(doomed)
        shutil.rmtree(doomed)


def _work_path(directory: Path) -> Path:
    return directory / WORK / secrets.token_hex(8)
