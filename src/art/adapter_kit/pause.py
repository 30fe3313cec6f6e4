"""Holds requests back while an engine sleeps. State only; lives on one event loop."""

from __future__ import annotations

import asyncio


class Pause:
    """A gate before the engine: open, or shut while those who come wait in order.

    Attributes:
        is_on: Whether who comes now has to wait.
        changing: Held by who puts the engine to sleep or wakes it: one at a time.
    """

    def __init__(self) -> None:
        self.is_on = False
        self.changing = asyncio.Lock()
        self._over = asyncio.Event()

    def begin(self) -> None:
        """Let nobody pass from now on."""
        self.is_on = True
        self._over.clear()

    def end(self) -> None:
        """Let those who wait pass, who came first first, and who comes from now on."""
        self.is_on = False
        self._over.set()

    async def over(self) -> None:
        """Wait until the pause ends. Another may have begun by the time the caller goes on: look at `is_on`."""
        await self._over.wait()
