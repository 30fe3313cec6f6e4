"""JSONL trajectory files brought into parquet, by upstream's names.

For YAML and older parquet there is the command `art migrate`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

# Upstream has these names here too.
from art.utils.trajectory_json import (
    deserialize_trajectory_groups,
    dict_to_history,
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
    from collections.abc import Callable

__all__ = [
    "MigrationResult",
    "auto_migrate_on_register",
    "deserialize_trajectory_groups",
    "dict_to_history",
    "dict_to_message_or_choice",
    "dict_to_trajectory",
    "dict_to_trajectory_group",
    "history_to_dict",
    "message_or_choice_to_dict",
    "migrate_all_models",
    "migrate_jsonl_to_parquet",
    "migrate_model_dir",
    "migrate_trajectories_dir",
    "serialize_trajectory_groups",
    "trajectory_group_to_dict",
    "trajectory_to_dict",
]

logger = logging.getLogger(__name__)

_ESTIMATED_COMPRESSION = 25  # upstream's figure for what a dry run cannot know


@dataclass
class MigrationResult:
    """What became of some files; results can be added.

    Attributes:
        files_migrated: Files that were brought into parquet, or would be.
        files_skipped: Files that are no JSONL, or whose parquet was there already.
        bytes_before: Size of the JSONL files, those with errors included.
        bytes_after: Size of the parquet files; an estimate in a dry run.
        errors: One message for each file that could not be migrated; it is as it was.
    """

    files_migrated: int = 0
    files_skipped: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    errors: list[str] = field(default_factory=list)

    @property
    def compression_ratio(self) -> float:
        """How many times smaller the new files are; 0.0 where there are none."""
        return self.bytes_before / self.bytes_after if self.bytes_after else 0.0

    @property
    def space_saved(self) -> int:
        """By how many bytes the new files are smaller."""
        return self.bytes_before - self.bytes_after

    def __add__(self, other: MigrationResult) -> MigrationResult:
        """Return the sums of both."""
        return MigrationResult(
            files_migrated=self.files_migrated + other.files_migrated,
            files_skipped=self.files_skipped + other.files_skipped,
            bytes_before=self.bytes_before + other.bytes_before,
            bytes_after=self.bytes_after + other.bytes_after,
            errors=self.errors + other.errors,
        )


def migrate_jsonl_to_parquet(
    jsonl_path: Path | str, delete_original: bool = True, dry_run: bool = False
) -> MigrationResult:
    """Bring one JSONL file into parquet, beside it.

    The original is deleted only after its parquet was written, synced, read back and found equal. An existing
    parquet is never overwritten.

    Args:
        jsonl_path: The file; another suffix than `.jsonl` is skipped.
        delete_original: Delete the JSONL file when its parquet is safe.
        dry_run: Read and check, and write nothing.

    Returns:
        The counts; what went wrong is in `errors`, not raised.
    """
    from art.migration import migrate_file

    path = Path(jsonl_path)
    result = MigrationResult()
    if not path.exists():
        result.errors.append(f"File not found: {path}")
        return result
    if path.suffix != ".jsonl":
        result.files_skipped = 1
        return result
    result.bytes_before = path.stat().st_size
    try:
        migrated = migrate_file(path, keep=not delete_original, dry_run=dry_run)
    except Exception as error:  # noqa: BLE001 - one bad file must not stop the others
        result.errors.append(f"Error migrating {path}: {error}")
        return result
    if migrated is None or migrated.was_there:
        return MigrationResult(files_skipped=1)
    result.files_migrated = 1
    estimate = result.bytes_before // _ESTIMATED_COMPRESSION
    result.bytes_after = estimate if dry_run else migrated.bytes_after
    return result


def migrate_trajectories_dir(
    trajectories_dir: Path | str,
    delete_originals: bool = True,
    dry_run: bool = False,
    progress_callback: Callable[[str], None] | None = None,
) -> MigrationResult:
    """Bring all JSONL files of a directory into parquet, at any depth; see `migrate_jsonl_to_parquet`.

    Args:
        trajectories_dir: The directory.
        delete_originals: Delete each JSONL file when its parquet is safe.
        dry_run: Read and check, and write nothing.
        progress_callback: Called with the path of each file before its turn.
    """
    directory = Path(trajectories_dir)
    if not directory.exists():
        return MigrationResult(errors=[f"Directory not found: {directory}"])
    result = MigrationResult()
    for path in sorted(directory.rglob("*.jsonl")):
        if progress_callback:
            progress_callback(str(path))
        result += migrate_jsonl_to_parquet(path, delete_originals, dry_run)
    return result


def migrate_model_dir(
    model_dir: Path | str,
    delete_originals: bool = True,
    dry_run: bool = False,
    progress_callback: Callable[[str], None] | None = None,
) -> MigrationResult:
    """Bring all JSONL trajectory files of a model into parquet; see `migrate_trajectories_dir`.

    Args:
        model_dir: The model's directory; one without trajectories gives an empty result.
        delete_originals: Delete each JSONL file when its parquet is safe.
        dry_run: Read and check, and write nothing.
        progress_callback: Called with the path of each file before its turn.
    """
    directory = Path(model_dir) / "trajectories"
    if not directory.exists():
        return MigrationResult()
    return migrate_trajectories_dir(directory, delete_originals, dry_run, progress_callback)


def migrate_all_models(
    art_path: Path | str,
    project_name: str,
    delete_originals: bool = True,
    dry_run: bool = False,
    progress_callback: Callable[[str], None] | None = None,
) -> MigrationResult:
    """Bring all JSONL trajectory files of a project into parquet; see `migrate_model_dir`.

    Args:
        art_path: The base path.
        project_name: The project.
        delete_originals: Delete each JSONL file when its parquet is safe.
        dry_run: Read and check, and write nothing.
        progress_callback: Called with a line for each model, and the path of each file before its turn.
    """
    models = Path(art_path) / project_name / "models"
    if not models.exists():
        return MigrationResult(errors=[f"Models directory not found: {models}"])
    result = MigrationResult()
    for model_dir in sorted(path for path in models.iterdir() if path.is_dir()):
        if progress_callback:
            progress_callback(f"Processing model: {model_dir.name}")
        result += migrate_model_dir(model_dir, delete_originals, dry_run, progress_callback)
    return result


def auto_migrate_on_register(model_dir: Path | str) -> MigrationResult:
    """Bring a model's JSONL files into parquet, and log what was done; see `migrate_model_dir`."""
    result = migrate_model_dir(model_dir)
    if result.files_migrated:
        logger.info(
            "%s: brought %d trajectory files into parquet (saved %.1f MB)",
            model_dir,
            result.files_migrated,
            result.space_saved / 1024 / 1024,
        )
    for error in result.errors:
        logger.warning("%s", error)
    return result
