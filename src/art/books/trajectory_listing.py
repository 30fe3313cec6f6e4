"""Finds trajectory files: `trajectories/{split}/{step}.{suffix}`, of this format or of an older one."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from art.books.paths import TRAJECTORIES, WRITE_LOCK

if TYPE_CHECKING:
    from collections.abc import Iterator

# In the order in which upstream used them: where one step has several files, the older content comes first.
SUFFIXES = (".yaml", ".yml", ".jsonl", ".parquet")

# Directory beside the files of a split for those that a migration is making. No split has this name, since a
# percent sign in a split is encoded.
STAGING = ".migrating%"
_STEP = re.compile(r"-?[0-9]+")


@dataclass(frozen=True)
class TrajectoryFile:
    """A trajectory file, and what its path tells.

    Attributes:
        path: The file.
        split: Name of its directory, decoded.
        step: The number that is its name.
    """

    path: Path
    split: str
    step: int

    @property
    def write_lock(self) -> Path | None:
        """The lock that writers of this model hold; None where the file is in no model's directory."""
        directory = self.path.absolute().parent.parent
        return directory.parent / WRITE_LOCK if directory.name == TRAJECTORIES else None


def locate(path: Path) -> TrajectoryFile | None:
    """Tell split and step of a file by its path; None where its name is no step or its suffix not ours."""
    if path.suffix not in SUFFIXES or not _STEP.fullmatch(path.stem):
        return None
    return TrajectoryFile(path, split=unquote(path.absolute().parent.name), step=int(path.stem))


def files_of_model(directory: Path) -> list[TrajectoryFile]:
    """List the trajectory files of a model in order of step, split and age of the format.

    Args:
        directory: A model's directory, its `trajectories` directory, or the directory of one split.

    Raises:
        OSError: A directory cannot be read.
    """
    inner = directory / TRAJECTORIES
    root = inner if inner.is_dir() else directory
    folders = [root, *filter(Path.is_dir, root.iterdir())]
    return sorted((file for folder in folders for file in _files_in(folder)), key=_order)


def files_under(directory: Path) -> list[TrajectoryFile]:
    """List the trajectory files of all models in a directory, at any depth; links are not followed.

    Args:
        directory: A base path, a project, or what `files_of_model` takes.

    Raises:
        OSError: A directory cannot be read.
    """
    found = {file.path: file for file in files_of_model(directory)}
    for folder, _, _ in os.walk(directory):
        if Path(folder).absolute().parent.name == TRAJECTORIES:
            found |= {file.path: file for file in _files_in(Path(folder))}
    return sorted(found.values(), key=lambda file: (file.path.parent, _order(file)))


def _files_in(folder: Path) -> Iterator[TrajectoryFile]:
    for path in folder.iterdir() if folder.name != STAGING else ():
        file = locate(path)
        if file is not None and path.is_file():
            yield file


def _order(file: TrajectoryFile) -> tuple[int, str, int, str]:
    return file.step, file.split, SUFFIXES.index(file.path.suffix), file.path.name
