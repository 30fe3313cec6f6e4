"""A lock for callers on different event loops and threads."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_PAUSE_S = 0.02


class LoopFreeLock:
    """One caller at a time, whatever event loop it is on. No asyncio primitive works across event loops."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    @contextlib.asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Wait for the lock, leaving the event loop free, and hold it while the block runs."""
        while not self._lock.acquire(blocking=False):  # noqa: ASYNC110 - see the class
            await asyncio.sleep(_PAUSE_S)
        try:
            yield
        finally:
            self._lock.release()
