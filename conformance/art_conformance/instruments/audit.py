"""What the interpreter tells of: files that are opened, variables that are set, connections, processes."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from types import TracebackType

_watching: list[Audit] = []
_is_hooked = False


class Audit:
    """Sees audit events of the whole process while it is entered.

    Args:
        *names: The events to keep.
        only_from_here: Leave out what threads bring about that are there already, except the present one.

    Attributes:
        events: Each event and its arguments, oldest first.
    """

    def __init__(self, *names: str, only_from_here: bool = False) -> None:
        self._names = frozenset(names)
        others = {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}
        self._bystanders = others if only_from_here else set[int | None]()
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
        if name in self._names and threading.get_ident() not in self._bystanders:
            self.events.append((name, args))


def _hook(name: str, args: tuple[Any, ...]) -> None:
    for audit in _watching:
        audit._see(name, args)
