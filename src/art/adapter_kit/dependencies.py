"""The dependencies of an adapter, which are an extra of its distribution: are they there, and new enough?"""

from __future__ import annotations

import importlib.util
import re
from importlib import metadata
from typing import TYPE_CHECKING

from art.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Iterable

_REQUIREMENT = re.compile(
    r"""(?P<name>[\w.-]+)(?P<bounds>[^;]*);.*extra == ['"](?P<extra>[\w.-]+)"""
)


def require(names: Iterable[str], *, extra: str, needed_by: str, distribution: str) -> None:
    """Check that the distributions of an extra are installed in versions that its lower bounds allow.

    Nothing is imported, so the check costs little and works where an import would fail.

    Args:
        names: The distributions that are needed, by names that are the names of their modules too.
        extra: The extra that brings them.
        needed_by: What the error says needs them.
        distribution: The distribution that has the extra.

    Raises:
        MissingDependencyError: One is missing or too old; the message tells each with the needed version.
    """
    bounds = _bounds(distribution, extra)
    problems = [
        f"{name}{bounds.get(name, '')} ({problem})"
        for name in names
        if (problem := _problem(name, bounds.get(name, ""))) is not None
    ]
    if problems:
        raise MissingDependencyError(
            f'{needed_by} needs {", ".join(problems)}; run: pip install "{distribution}[{extra}]"'
        )


def _bounds(distribution: str, extra: str) -> dict[str, str]:
    """Return the version bounds of an extra by name, as in ">=2.11"."""
    try:
        requirements = metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:
        return {}  # a checkout on the path, not installed: nothing tells them
    matches = map(_REQUIREMENT.match, requirements)
    found = [match for match in matches if match is not None and match["extra"] == extra]
    return {match["name"]: match["bounds"].strip() for match in found}


def _problem(name: str, bounds: str) -> str | None:
    if importlib.util.find_spec(name) is None:
        return "not installed"
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:  # on the path without being installed: its owner knows
        return None
    lowest = re.search(r">=\s*([\d.]+)", bounds)
    is_too_old = lowest is not None and _release(version) < _release(lowest[1])
    return f"{version} is installed" if is_too_old else None


def _release(version: str) -> list[int]:
    """Return the numbers of a version, as far as it is made of numbers."""
    numbers = re.match(r"\d+(\.\d+)*", version)
    return [int(number) for number in numbers[0].split(".")] if numbers else []
