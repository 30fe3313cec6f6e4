"""How long an event loop is held up."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

_TICK_S = 0.005
_SCHEDULER = Path("/proc/thread-self/schedstat")


class Ticker:
    """Ticks on the running event loop while it is entered.

    Attributes:
        longest_s: The longest time between two ticks, without what the thread waited for a processor: others
            may keep all of them busy.
    """

    def __init__(self) -> None:
        self.longest_s = 0.0

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._tick())
        await asyncio.sleep(2 * _TICK_S)
        return self

    async def _tick(self) -> None:
        last, last_waited = time.monotonic(), _waited_for_a_processor()
        while True:
            await asyncio.sleep(_TICK_S)
            now, waited = time.monotonic(), _waited_for_a_processor()
            self.longest_s = max(self.longest_s, now - last - (waited - last_waited))
            last, last_waited = now, waited

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if exc is None:
            await asyncio.sleep(2 * _TICK_S)  # for the last of it to be seen
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


def _waited_for_a_processor() -> float:
    """Return the seconds that this thread was ready to run and did not, as far as Linux tells."""
    try:
        return int(_SCHEDULER.read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0
