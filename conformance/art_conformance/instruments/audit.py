"""What the interpreter tells of: which files are opened, which variables of the environment are set."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from types import TracebackType

_watching: list[Audit] = []
_is_hooked = False


class Audit:
    """Sees audit events of the whole process while it is entered.

    Args:
        *names: The events to keep.

    Attributes:
        events: Each event and its arguments, oldest first.
    """

    def __init__(self, *names: str) -> None:
        self._names = frozenset(names)
        self.events: list[tuple[str, tuple[Any, ...]]] = []

    def __enter__(self) -> Self:
        global _is_hooked  # noqa: PLW0603 - a hook cannot be taken away, so there is one for all
        if not _is_hooked:
            sys.addaudithook(_hook)
            _is_hooked = True
        _watching.append(self)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _watching.remove(self)

    def _see(self, name: str, args: tuple[Any, ...]) -> None:
        if name in self._names:
            self.events.append((name, args))


def _hook(name: str, args: tuple[Any, ...]) -> None:
    for audit in _watching:
        audit._see(name, args)
