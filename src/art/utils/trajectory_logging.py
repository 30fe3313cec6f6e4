"""Reading and writing trajectory files by upstream's names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from art.trajectories import TrajectoryGroup


def write_trajectory_groups_parquet(
    trajectory_groups: list[TrajectoryGroup], path: str | Path
) -> None:
    """Write groups to a parquet file, replacing what is there.

    Args:
        trajectory_groups: The groups.
        path: The file; missing directories are made.

    Raises:
        InvalidTrajectoriesError: A group holds what cannot be stored; nothing was written.
        LogError: The file could not be written.
    """
    from art.books.trajectory_file import write_groups

    write_groups(Path(path), trajectory_groups)


def read_trajectory_groups_parquet(path: str | Path) -> list[TrajectoryGroup]:
    """Read the groups of a parquet file, of this project's or upstream's format.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: There is no such file.
        LogError: It cannot be read.
    """
    from art.books.trajectory_file import read_groups

    return read_groups(Path(path))
