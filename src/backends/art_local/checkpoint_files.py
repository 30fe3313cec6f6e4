"""Checkpoint directories: written whole or not at all, listed, copied and deleted.

The only place that knows how `checkpoints/` is laid out: one directory a step, named by its number padded to
four digits (`0003`, `12345`). Everything unfinished lives in a work directory beside them on the same file
system and gets its final name by one rename, so that a process killed at any moment leaves no half checkpoint.

Entries of the work directory are named `{kind}-{pid}-{random}`: `clean_work_dir` removes those of processes
that no longer live, and touches nothing of those that do.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import secrets
import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from art.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

logger = logging.getLogger(__name__)

ADAPTER_WEIGHTS = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
OPTIMIZER_STATE = "optimizer.safetensors"
TRAINER_STATE = "trainer_state.json"

_WORK_NAME = re.compile(r"[a-z]+-(\d+)-[0-9a-f]{8}")

# In a container a new process often has the very pid of its predecessor; what is older than this process
# cannot be its own.
_STARTED_S = time.time()


@dataclass(frozen=True)
class WeightsFile:
    """Which file a checkpoint's weights are: a checkpoint that is made anew has another one.

    Attributes:
        path: Where it is.
        device: The file system.
        inode: The file in it.
        modified_ns: When it was written.
    """

    path: Path
    device: int
    inode: int
    modified_ns: int

    @classmethod
    def of(cls, checkpoint: Path) -> WeightsFile:
        """Look at a checkpoint's weights.

        Raises:
            FileNotFoundError: It has none.
        """
        path = (checkpoint / ADAPTER_WEIGHTS).resolve(strict=True)
        stat = path.stat()
        return cls(path, stat.st_dev, stat.st_ino, stat.st_mtime_ns)


def work_dir_of(checkpoints_dir: Path) -> Path:
    """Return the adapter's own directory for unfinished work, beside the step directories (clause T7)."""
    return checkpoints_dir / ".art_local"


def step_dir(checkpoints_dir: Path, step: int) -> Path:
    """Return the directory of a step, whether it exists or not."""
    return checkpoints_dir / f"{step:04d}"


def list_steps(checkpoints_dir: Path) -> list[int]:
    """Return the steps of all whole checkpoints, ascending; none where the directory does not exist."""
    return list(list_weights(checkpoints_dir))


def list_weights(checkpoints_dir: Path) -> dict[int, WeightsFile]:
    """Return the weights file of every whole checkpoint, in order of steps."""
    found = {}
    for step, path in sorted(_step_dirs(checkpoints_dir)):
        with contextlib.suppress(FileNotFoundError):  # not whole, or just deleted
            if all((path / name).is_file() for name in (ADAPTER_WEIGHTS, ADAPTER_CONFIG)):
                found[step] = WeightsFile.of(path)
    return found


def commit(work_dir: Path, target_dir: Path, write: Callable[[Path], None]) -> None:
    """Write a checkpoint directory so that it appears whole, on durable storage, or not at all.

    A directory that is already there is replaced. A process that dies between the two renames of a
    replacement leaves neither the old nor the new one, never a mixture.

    Args:
        work_dir: Directory for unfinished work, on the file system of `target_dir`.
        target_dir: The checkpoint's directory.
        write: Writes the files into the empty directory it is given. If it raises, nothing has changed.
    """
    temporary = work_path(work_dir, "writing")
    temporary.mkdir(parents=True)
    try:
        write(temporary)
        _sync_tree(temporary)
        target_dir.parent.mkdir(parents=True, exist_ok=True)
        replaced = work_path(work_dir, "replaced")
        had_old = _move_away(target_dir, replaced)
        try:
            temporary.rename(target_dir)
        except OSError:
            if had_old:
                replaced.rename(target_dir)
            raise
        _sync(target_dir.parent)
        if had_old:
            _remove(replaced)
    finally:
        _remove(temporary)  # gone already, unless something failed


def copy_step(from_dir: Path, to_dir: Path, work_dir: Path) -> None:
    """Make a checkpoint with the weights of another one, as a train call without a training signal does."""

    def write(directory: Path) -> None:
        shutil.copytree(from_dir, directory, dirs_exist_ok=True)
        state_file = directory / TRAINER_STATE
        if state_file.exists():
            state = json.loads(state_file.read_text(encoding="utf-8"))
            state_file.write_text(json.dumps({**state, "step": int(to_dir.name)}), encoding="utf-8")

    commit(work_dir, to_dir, write)


def delete_steps(checkpoints_dir: Path, keep: Iterable[int], work_dir: Path) -> list[OSError]:
    """Delete the checkpoints of every step but these; clauses D1-D4.

    Each one leaves the listing by a single rename before its files are deleted. Names that are not a step
    number and symlinks stay. "Already gone" is success.

    Returns:
        The failures. They do not stop the rest.

    Raises:
        ConfigurationError: `keep` is empty.
    """
    kept = set(keep)
    if not kept:
        raise ConfigurationError(
            f"deleting every checkpoint in {checkpoints_dir} was asked for; name at least one step to keep"
        )
    errors: list[OSError] = []
    doomed: list[Path] = []
    for step, path in _step_dirs(checkpoints_dir):
        if step not in kept:
            target = work_path(work_dir, "deleted")
            try:
                if _move_away(path, target):
                    doomed.append(target)
            except OSError as error:
                errors.append(error)
    for path in doomed:
        try:
            _remove(path)
        except OSError as error:
            errors.append(error)
    return errors


def work_path(work_dir: Path, kind: str) -> Path:
    """Return a new path in the work directory that `clean_work_dir` removes once this process is gone.

    Args:
        work_dir: The work directory.
        kind: What it is for, in lower-case letters.
    """
    return work_dir / f"{kind}-{os.getpid()}-{secrets.token_hex(4)}"


def clean_work_dir(work_dir: Path) -> None:
    """Remove what killed processes left in the work directory; never what a live one uses."""
    if not work_dir.is_dir():
        return
    for path in work_dir.iterdir():
        match = _WORK_NAME.fullmatch(path.name)
        try:
            if match is not None and not _may_be_in_use(path, int(match[1])):
                _remove(path)
        except FileNotFoundError:  # its owner was done with it just now
            continue
        except OSError as error:
            logger.warning("leftover %s could not be removed: %s", path, error)


def _may_be_in_use(path: Path, pid: int) -> bool:
    if pid == os.getpid():
        return path.lstat().st_mtime >= _STARTED_S
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # alive, but another user's
    return True


def _step_dirs(checkpoints_dir: Path) -> Iterator[tuple[int, Path]]:
    if not checkpoints_dir.is_dir():
        return
    for path in list(checkpoints_dir.iterdir()):
        name = path.name
        if (
            not (name.isascii() and name.isdigit())
            or name != step_dir(checkpoints_dir, int(name)).name
        ):
            continue
        if path.is_dir() and not path.is_symlink():
            yield int(name), path


def _move_away(path: Path, target: Path) -> bool:
    """Move a path into the work directory; False if it is already gone."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.rename(target)
    except FileNotFoundError:
        return False
    _sync(path.parent)
    return True


def _remove(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink(missing_ok=True)
    elif path.exists():
        shutil.rmtree(path)


def _sync_tree(directory: Path) -> None:
    for path in directory.rglob("*"):
        _sync(path)
    _sync(directory)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
