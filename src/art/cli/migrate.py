"""`art migrate`: trajectory files of older formats brought into the present one."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from art.errors import ConfigurationError

if TYPE_CHECKING:
    from art.migration import MigratedFile


def command(arguments: list[str]) -> int:
    """Bring upstream's YAML, JSONL and older parquet trajectory files into the present format.

    Returns:
        0, or 1 where a file could not be migrated.

    Raises:
        ConfigurationError: There is no such directory.
    """
    options = _parser().parse_args(arguments)
    from art.books.trajectory_listing import files_under

    directory: Path = options.directory
    if not directory.is_dir():
        raise ConfigurationError(
            f"{directory} is no directory; pass one that holds trajectory files"
        )
    totals = _Totals()
    for file in files_under(directory):
        _migrate(file.path, directory, options, totals)
    print(totals.summary(dry_run=options.dry_run))
    return 1 if totals.num_failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="art migrate",
        description="Bring upstream's YAML, JSONL and older parquet trajectory files into the present "
        "format, without loss. An old file is deleted only after its new one was read back and found equal. "
        "What the first parquet format never stored stays lost.",
    )
    parser.add_argument(
        "directory", type=Path, help="a base path, a project, or the directory of a model"
    )
    parser.add_argument(
        "-n", "--dry-run", action="store_true", help="read and check all files, write nothing"
    )
    parser.add_argument(
        "--keep",
        "--keep-jsonl",
        action="store_true",
        help="leave the old files; parquet is kept as {step}.parquet.original",
    )
    return parser


@dataclass
class _Totals:
    num_migrated: int = 0
    num_current: int = 0
    num_failed: int = 0
    bytes_before: int = 0
    bytes_after: int = 0

    def add(self, migrated: MigratedFile) -> None:
        self.num_migrated += 1
        self.bytes_before += migrated.bytes_before
        self.bytes_after += migrated.bytes_after

    def summary(self, *, dry_run: bool) -> str:
        sizes = f"{self.bytes_before:,} bytes"
        if dry_run:
            done = f"would migrate {self.num_migrated} files of {sizes}"
        else:
            done = f"migrated {self.num_migrated} files, {sizes} before, {self.bytes_after:,} after"
        return f"{done}; {self.num_current} need no migration, {self.num_failed} failed"


def _migrate(path: Path, directory: Path, options: argparse.Namespace, totals: _Totals) -> None:
    from art.migration import migrate_file

    name = path.relative_to(directory)
    try:
        migrated = migrate_file(path, keep=options.keep, dry_run=options.dry_run)
    except Exception as error:  # noqa: BLE001 - one bad file must not stop the others
        totals.num_failed += 1
        print(f"{name}: failed: {error}", file=sys.stderr, flush=True)
        return
    if migrated is None or (migrated.was_there and options.keep):
        totals.num_current += 1
        return
    totals.add(migrated)
    print(f"{name}: {_outcome(migrated, dry_run=options.dry_run)}", flush=True)


def _outcome(migrated: MigratedFile, *, dry_run: bool) -> str:
    what = f"{migrated.format}, {migrated.num_groups} groups"
    if migrated.was_there:
        verb = "would be deleted" if dry_run else "was deleted"
        return f"{what}; {migrated.target.name} held it already, so it {verb}"
    if dry_run:
        return f"{what}, {migrated.bytes_before:,} bytes; would become {migrated.target.name}"
    return f"{what}; {migrated.bytes_before:,} -> {migrated.bytes_after:,} bytes in {migrated.target.name}"
