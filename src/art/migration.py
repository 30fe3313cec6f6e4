"""Brings one trajectory file of an older format into the present one, without loss.

The new file is written beside the old one, synced, read back and compared with it before it takes its place,
and only then is the old one deleted. Whatever goes wrong before that leaves the old file as it is.
"""

from __future__ import annotations

import contextlib
import filecmp
import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from art.books.atomic import replacing, sync_directory
from art.books.lock import hold, write_lock
from art.books.os_errors import log_error
from art.books.trajectory_file import append_groups, read_groups, read_logs, write_groups
from art.books.trajectory_formats import older_format, write_as_v2
from art.books.trajectory_legacy import read_legacy_file, unknown_keys
from art.books.trajectory_listing import STAGING, locate
from art.equality import same_groups
from art.errors import LogError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from art.trajectories import TrajectoryGroup

_KEPT_SUFFIX = ".original"


@dataclass(frozen=True)
class MigratedFile:
    """What became of one file of an older format.

    Attributes:
        format: Name of its format, as "JSONL" or "parquet v1".
        target: The new file.
        was_there: The new file held the old one's content already.
        num_groups: Groups in the old file.
        bytes_before: Size of the old file.
        bytes_after: Size of the new file; 0 in a dry run.
    """

    format: str
    target: Path
    was_there: bool
    num_groups: int
    bytes_before: int
    bytes_after: int


def migrate_file(path: Path, *, keep: bool = False, dry_run: bool = False) -> MigratedFile | None:
    """Bring a file into the present format, `{name}.parquet` beside it; None where it has it already.

    Args:
        path: A `.jsonl`, `.yaml`, `.yml` or `.parquet` file. Split and step of its rows are told by its path,
            `{split}/{step}.{suffix}`.
        keep: Leave the old file where it is; parquet, whose name the new file takes, gets `.original` added.
        dry_run: Read and check, and write nothing.

    Raises:
        MissingDependencyError: The file is YAML and pyyaml is not installed.
        LogError: It cannot be read; or its new file could not be written, does not hold the same, or would
            take the place of a file with other content. The old file is as it was.
    """
    file = locate(path)
    lock = file.write_lock if file is not None else None
    try:
        with contextlib.nullcontext() if dry_run else _alone(path, lock):
            if not dry_run:
                _remove_staging_directory(path)  # of a migration that was killed
            name = older_format(path)
            return None if name is None else _migrate(path, name, keep=keep, dry_run=dry_run)
    except LogError:
        raise
    except OSError as error:
        raise log_error("migrate", path, error) from error


@contextlib.contextmanager
def _alone(path: Path, lock: Path | None) -> Iterator[None]:
    """Keep the writers of the model away, and other migrations; a file of no model is locked by its directory."""
    if lock is not None:
        with write_lock(lock):
            yield
        return
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        with hold(descriptor, path.parent):
            yield
    finally:
        os.close(descriptor)


def _migrate(path: Path, name: str, *, keep: bool, dry_run: bool) -> MigratedFile:
    target = path.with_suffix(".parquet")
    source = _Source.read(path)
    bytes_before = path.stat().st_size
    was_there = target != path and target.exists()
    if was_there:
        _check_target(target, source, path, keep=keep)
    elif not dry_run:
        _write_new_file(source, path, target, keep=keep)
    if target != path and not (keep or dry_run):
        path.unlink()
        sync_directory(path.parent)
    bytes_after = 0 if dry_run else target.stat().st_size
    return MigratedFile(name, target, was_there, len(source.groups), bytes_before, bytes_after)


@dataclass(frozen=True)
class _Source:
    """What an old file holds; documents where it is text, which may have keys that groups have not."""

    groups: list[TrajectoryGroup]
    documents: list[dict[str, Any]] | None

    @classmethod
    def read(cls, path: Path) -> _Source:
        if path.suffix == ".parquet":
            source = cls(read_groups(path), None)
        else:
            documents, groups = read_legacy_file(path)
            source = cls(groups, documents)
        if locate(path) is None and (source.documents is None or source.unknown):
            raise LogError(
                f"{path} is not named by its step, which its new file needs; "
                f"name it {{split}}/{{step}}{path.suffix}"
            )
        return source

    @property
    def unknown(self) -> list[str]:
        return unknown_keys(self.documents or [])


def _check_target(target: Path, source: _Source, path: Path, *, keep: bool) -> None:
    # The first log of the target is this content where an earlier migration kept its source or was killed.
    first = next(iter(read_logs(target).values()), [])
    if not same_groups(first, source.groups) or (source.unknown and not keep):
        raise LogError(
            f"{target} exists and may not hold all of {path.name}; nothing was changed, "
            "look into both and move one of them away"
        )


def _write_new_file(source: _Source, path: Path, target: Path, *, keep: bool) -> None:
    file = locate(path)
    with _staging_directory(path) as directory:
        staged = directory / target.name
        if file is None:
            write_groups(staged, source.groups)
        else:
            if source.documents is None:
                shutil.copyfile(path, staged)
            else:
                write_as_v2(source.documents, staged)
            append_groups(staged, [], split=file.split, step=file.step)
        if not same_groups(read_groups(staged), source.groups):
            raise LogError(
                f"{path} did not come back the same from its new file, so nothing was changed; "
                "please report this, with the file if you can"
            )
        if keep and target == path:
            _keep_copy(path)
        staged.replace(target)
    sync_directory(path.parent)


@contextlib.contextmanager
def _staging_directory(path: Path) -> Iterator[Path]:
    """Make a directory for new files, so that none is left beside `path` whatever goes wrong."""
    directory = path.with_name(STAGING)
    directory.mkdir()
    try:
        yield directory
    finally:
        _remove_staging_directory(path)


def _remove_staging_directory(path: Path) -> None:
    shutil.rmtree(path.with_name(STAGING), ignore_errors=True)


def _keep_copy(path: Path) -> None:
    aside = path.with_name(path.name + _KEPT_SUFFIX)
    if aside.exists():
        if filecmp.cmp(path, aside, shallow=False):  # of a migration that was killed
            return
        raise LogError(f"{aside} exists already; nothing was changed, move it away")
    with path.open("rb") as source, replacing(aside) as copy:
        shutil.copyfileobj(source, copy)
