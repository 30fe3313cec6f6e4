"""The processes that train one model together; one alone is the plain case."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch

T = TypeVar("T")


class World:
    """One process that trains alone: every question has its own answer.

    Attributes:
        rank: This process's number.
        size: How many there are.
    """

    rank: int = 0
    size: int = 1

    def share(self, items: Sequence[T]) -> list[tuple[T, bool]]:
        """Return this process's items, as many on every process.

        Returns:
            Pairs of an item and whether it counts. Where the items do not come out even, one is repeated that does
            not: forward passes may be collective, so every process makes the same number of them.
        """
        return [(item, True) for item in items]

    def any(self, flag: bool) -> bool:
        """Return whether it holds on any process."""
        return flag

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Add up the gradients of all processes, in place."""

    def gather(self, value: T) -> list[T]:
        """Return every process's value, in order of ranks."""
        return [value]
