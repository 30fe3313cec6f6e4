"""Reads the text files that upstream wrote before parquet: YAML (mid-2025), then JSONL with one group a line.

A group is read as a *document*: the JSON object of the file, with nulls of known fields left out. Documents
keep keys that this project does not know, which groups cannot.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, NamedTuple

from art.books.os_errors import log_error
from art.books.plain_json import plain
from art.errors import LogError, MissingDependencyError
from art.trajectories import Trajectory, TrajectoryGroup

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

GROUP_FIELDS = frozenset({"exceptions", "metadata", "metrics", "logs"})
TRAJECTORY_FIELDS = frozenset(Trajectory.model_fields) - {"start_time"}
_NUMBERS = ("metrics", "auto_metrics")


class LegacyFile(NamedTuple):
    """What a text file holds: its documents, and the groups that are built from them."""

    documents: list[dict[str, Any]]
    groups: list[TrajectoryGroup]


def read_legacy_file(path: Path) -> LegacyFile:
    """Read a `.jsonl`, `.yaml` or `.yml` file.

    Raises:
        FileNotFoundError: There is no such file.
        MissingDependencyError: It is YAML and pyyaml is not installed.
        LogError: It cannot be read.
    """
    is_jsonl = path.suffix == ".jsonl"
    try:
        text = path.read_bytes().decode("utf-8-sig")
        documents = parse_jsonl(text) if is_jsonl else parse_yaml_groups(text)
        return LegacyFile(documents, groups_of(documents))
    except (FileNotFoundError, MissingDependencyError):
        raise
    except OSError as error:
        raise log_error("read", path, error) from error
    except (ValueError, RecursionError) as error:
        kind = "JSONL" if is_jsonl else "YAML"
        raise LogError(
            f"{path} cannot be read as a {kind} file of trajectory groups: {error}; "
            "it may be torn or of another kind"
        ) from error


def parse_jsonl(text: str) -> list[dict[str, Any]]:
    """Parse documents, one a line; blank lines are skipped.

    Raises:
        ValueError: A line is no group; the message tells its number.
    """
    documents = []
    # Not splitlines: JSON may hold U+2028 as it is.
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                documents.append(document_of(json.loads(line)))
            except (ValueError, RecursionError) as error:
                raise ValueError(f"line {number}: {error}") from error
    return documents


def parse_groups(text: str) -> list[dict[str, Any]]:
    """Parse documents from either form of text; JSONL is told by its first brace.

    Raises:
        MissingDependencyError: It is YAML and pyyaml is not installed.
        ValueError: It is neither.
    """
    is_jsonl = text.lstrip()[:1] in {"", "{"}
    return parse_jsonl(text) if is_jsonl else parse_yaml_groups(text)


def parse_yaml_groups(text: str) -> list[dict[str, Any]]:
    """Parse one YAML list of documents.

    Raises:
        MissingDependencyError: pyyaml is not installed.
        ValueError: It is no list of groups.
    """
    try:
        from art.books.trajectory_yaml import parse_yaml
    except ImportError as error:
        raise MissingDependencyError(
            'YAML trajectory files need pyyaml; install it with `pip install "art-rl[migrate]"`'
        ) from error
    groups = parse_yaml(text)
    if not isinstance(groups, list):
        raise ValueError(f"it holds a {type(groups).__name__}, not a list of groups")  # noqa: TRY004 - about the file
    documents = []
    for i, group in enumerate(groups):
        try:
            documents.append(document_of(plain(group)))
        except ValueError as error:
            raise ValueError(f"group {i}: {error}") from error
    return documents


def document_of(value: object) -> dict[str, Any]:
    """Return the document of a group's JSON value.

    Raises:
        ValueError: It is no group.
    """
    if not isinstance(value, dict) or not isinstance(value.get("trajectories"), list):
        raise ValueError("it is no object with a list of trajectories")  # noqa: TRY004 - about the file
    document = _without_nulls(value, GROUP_FIELDS)
    document["trajectories"] = [_trajectory_document(item) for item in value["trajectories"]]
    return document


def groups_of(documents: Iterable[dict[str, Any]]) -> list[TrajectoryGroup]:
    """Build groups from documents; choices become Choices, keys that we do not know are left out.

    Raises:
        ValueError: A value is of the wrong kind; the message tells the group.
    """
    groups = []
    for i, document in enumerate(documents):
        try:
            groups.append(_group_of(document))
        except (ValueError, TypeError) as error:
            raise ValueError(f"group {i}: {error}") from error
    return groups


def unknown_keys(documents: Iterable[dict[str, Any]]) -> list[str]:
    """Return the names of the keys, sorted, that groups built from these documents leave out."""
    names: set[str] = set()
    for document in documents:
        names |= document.keys() - GROUP_FIELDS - {"trajectories"}
        for trajectory in document["trajectories"]:
            names |= trajectory.keys() - TRAJECTORY_FIELDS
    return sorted(names)


def _trajectory_document(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"a trajectory is a {type(value).__name__}, not an object")  # noqa: TRY004 - as above
    if "reward" not in value:  # in YAML it is written last
        raise ValueError("a trajectory has no reward, as if the file were torn")
    document = _without_nulls(value, TRAJECTORY_FIELDS)
    document.setdefault("reward", math.nan)
    return document


def _without_nulls(fields: dict[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Return a copy without known fields that are null; a number that is null was NaN."""
    document = {k: v for k, v in fields.items() if v is not None or k not in known}
    for name in _NUMBERS:
        if isinstance(document.get(name), dict):
            document[name] = {k: math.nan if v is None else v for k, v in document[name].items()}
    return document


def _group_of(document: dict[str, Any]) -> TrajectoryGroup:
    trajectories = [
        Trajectory(**{k: v for k, v in trajectory.items() if k in TRAJECTORY_FIELDS})
        for trajectory in document["trajectories"]
    ]
    return TrajectoryGroup(trajectories, **{k: v for k, v in document.items() if k in GROUP_FIELDS})
