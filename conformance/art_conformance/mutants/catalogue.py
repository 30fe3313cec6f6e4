"""Every mutant, by the group of checks that is to catch it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from art_conformance.mutants import (
    Mutant,
    books,
    cancellation,
    closing,
    concurrency,
    deletion,
    errors,
    files,
    inference,
    inference_choices,
    inference_names,
    learning_rate,
    multi,
    resume,
    shape,
    stateful,
    steps,
    swap,
    types,
    yielding,
)

if TYPE_CHECKING:
    from types import ModuleType

_MODULES: tuple[ModuleType, ...] = (
    shape,
    yielding,
    steps,
    types,
    deletion,
    resume,
    books,
    errors,
    learning_rate,
    swap,
    stateful,
    inference,
    inference_choices,
    inference_names,
    cancellation,
    closing,
    concurrency,
    files,
    multi,
)

MUTANTS: tuple[Mutant, ...] = tuple(
    value for module in _MODULES for value in vars(module).values() if isinstance(value, Mutant)
)
