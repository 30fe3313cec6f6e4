"""The state of files, to compare before and after."""

from __future__ import annotations

import hashlib
from pathlib import Path


def files_under(directory: Path) -> dict[str, str]:
    """Return a digest of every file below a directory, by its relative path; of a symlink, where it leads."""
    found = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_file():
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def books_of(directory: Path) -> dict[str, str]:
    """Return the digests of the files of a model's directory that belong to the frontend alone.

    Left out are `checkpoints/`, which is the adapter's, and lock files, which come and go.
    """
    return {
        name: digest
        for name, digest in files_under(directory).items()
        if Path(name).parts[0] != "checkpoints" and not Path(name).name.endswith(".lock")
    }


def changes(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Return the names that were added, removed or changed."""
    return sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
