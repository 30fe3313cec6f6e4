"""The list of checks that a run must account for, shipped with the suite.

A check that is not in the code any more, or that something replaced or left out, is told as an ERROR: no one can
be certified by running less. `python -m art_conformance --write-manifest` writes the list after a change.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from art_conformance.check import Check

PATH = Path(__file__).with_name("manifest.json")

PROTOCOL_VERSION = 1
"""Version of the contract in `art.backend`."""

SUITE_VERSION = "1.0"
"""Version of the suite; a new check raises the minor number."""

FIRST_VERSION = "1.0"


@dataclass(frozen=True)
class Entry:
    """A check as the manifest lists it.

    Attributes:
        id: The check.
        since: The suite's version that brought it.
    """

    id: str
    since: str

    @property
    def is_new(self) -> bool:
        """Whether this version brought it: then a failure only warns, so that no one's CI breaks over night."""
        return self.since == SUITE_VERSION != FIRST_VERSION


def read_manifest(path: Path = PATH) -> list[Entry]:
    """Return the entries in the order in which the checks are run."""
    return [Entry(**item) for item in json.loads(path.read_text())["checks"]]


def write_manifest(checks: Iterable[Check], path: Path = PATH) -> None:
    """Write the list of these checks; a check that was listed keeps its version."""
    known = {entry.id: entry.since for entry in read_manifest(path)} if path.exists() else {}
    entries = [{"id": c.id, "since": known.get(c.id, SUITE_VERSION)} for c in checks]
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps({"checks": entries}, indent=1) + "\n")
    unfinished.replace(path)
