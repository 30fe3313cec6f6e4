"""Reading and writing trajectory files by upstream's names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

# Upstream had these here before it wrote parquet.
from art.utils.trajectory_json import (
    deserialize_trajectory_groups,
    dict_to_message_or_choice,
    dict_to_trajectory,
    dict_to_trajectory_group,
    history_to_dict,
    message_or_choice_to_dict,
    serialize_trajectory_groups,
    trajectory_group_to_dict,
    trajectory_to_dict,
)

if TYPE_CHECKING:
    from art.trajectories import TrajectoryGroup

__all__ = [
    "deserialize_trajectory_groups",
    "dict_to_message_or_choice",
    "dict_to_trajectory",
    "dict_to_trajectory_group",
    "history_to_dict",
    "message_or_choice_to_dict",
    "read_trajectory_groups_parquet",
    "serialize_trajectory_groups",
    "trajectory_group_to_dict",
    "trajectory_to_dict",
    "write_trajectory_groups_parquet",
]


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
