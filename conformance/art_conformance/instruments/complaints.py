"""What Python says when something asynchronous was not brought to its end, and which generators still are open."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
import warnings
import weakref
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from types import TracebackType

_GRACE_S = 2.0
_POLL_S = 0.02
_PHRASES = ("was never awaited", "was not closed", "was destroyed", "asynchronous generator")


class Complaints:
    """Hears the complaints about asynchronous work of the running event loop while it is entered.

    Attributes:
        heard: What was said, in words that are the same in every run.
    """

    def __init__(self) -> None:
        self.heard: list[str] = []
        self._generators: list[weakref.ref[AsyncGenerator[Any, Any]]] = []

    def __enter__(self) -> Self:
        gc.collect()  # what others left behind is not meant
        self._loop = asyncio.get_running_loop()
        self._before = self._loop.get_exception_handler(), sys.unraisablehook
        self._hooks = sys.get_asyncgen_hooks()
        self._warnings = warnings.catch_warnings(record=True)
        self._warned = self._warnings.__enter__()
        warnings.simplefilter("always")
        self._loop.set_exception_handler(self._on_loop)
        sys.unraisablehook = self._on_unraisable
        sys.set_asyncgen_hooks(firstiter=self._on_generator)
        return self

    def _on_loop(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.heard.append(f"{context['message']}: {context.get('exception')!r}")

    def _on_unraisable(self, unraisable: Any) -> None:
        self.heard.append(f"ignored in a clean-up: {unraisable.exc_value!r}")

    def _on_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._generators.append(weakref.ref(generator))
        if self._hooks.firstiter is not None:
            self._hooks.firstiter(generator)

    async def settle(self) -> None:
        """Let all clean-up come to its end, and what was forgotten be found."""
        end = time.monotonic() + _GRACE_S
        await asyncio.sleep(_POLL_S)
        while self._open() and time.monotonic() < end:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(_POLL_S)
        gc.collect()
        await asyncio.sleep(_POLL_S)
        texts = [str(w.message).partition("\n")[0] for w in self._warned or []]
        self.heard += [text for text in texts if any(phrase in text for phrase in _PHRASES)]
        self.heard += [f"the async generator {name} is still open" for name in self._open()]

    def _open(self) -> list[str]:
        """Name the generators that were begun meanwhile, and neither ended nor were closed."""
        generators = [generator for ref in self._generators if (generator := ref()) is not None]
        return [g.__qualname__ for g in generators if g.ag_frame is not None]  # type: ignore[attr-defined]

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        sys.set_asyncgen_hooks(*self._hooks)
        self._loop.set_exception_handler(self._before[0])
        sys.unraisablehook = self._before[1]
        self._warnings.__exit__(exc_type, exc, trace)
