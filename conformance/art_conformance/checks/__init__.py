"""Every check there is, by group. A group is a file; the order here is the order in which they are run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from art_conformance.check import Check
from art_conformance.checks import (
    books,
    cancellation,
    closing,
    concurrency,
    deletion,
    errors,
    files,
    inference,
    inference_beside,
    inference_choices,
    inference_names,
    learning_rate,
    multi,
    restart,
    resume,
    retention,
    shape,
    stateful,
    steps,
    swap,
    types,
    yielding,
)

if TYPE_CHECKING:
    from types import ModuleType

GROUPS: tuple[ModuleType, ...] = (
    shape,
    yielding,
    steps,
    types,
    inference_choices,
    inference_names,
    inference_beside,
    inference,
    deletion,
    retention,
    resume,
    restart,
    books,
    errors,
    learning_rate,
    swap,
    stateful,
    cancellation,
    closing,
    concurrency,
    files,
    multi,
)


def _checks_of(group: ModuleType) -> list[Check]:
    found = [value for value in vars(group).values() if isinstance(value, Check)]
    return sorted(found, key=lambda check: check.id)


ALL: tuple[Check, ...] = tuple(check for group in GROUPS for check in _checks_of(group))
"""The checks in the order in which they are run."""
