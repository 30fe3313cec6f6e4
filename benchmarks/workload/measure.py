"""Stopwatch, memory high-water mark, and the ticker that feels when the event loop stands still."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import resource
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

MB = 2**20
TICK_S = 0.005
_STATUS = Path("/proc/self/status")


class Clock:
    """Wall and CPU seconds of a `with` block; CPU is that of all threads of the process."""

    wall_s: float
    cpu_s: float

    def __enter__(self) -> Clock:
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall_s = time.perf_counter() - self._wall
        self.cpu_s = time.process_time() - self._cpu


class Ticker:
    """Ticks every 5 ms on the event loop during an `async with` block.

    Attributes:
        worst_gap_s: The longest time between two ticks; 5 ms where nothing blocks the loop.
    """

    worst_gap_s: float

    async def __aenter__(self) -> Ticker:
        self._gaps: list[float] = []
        self._task = asyncio.create_task(self._tick())
        await asyncio.sleep(10 * TICK_S)
        self._gaps.clear()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await asyncio.sleep(4 * TICK_S)  # a gap is known at the tick that ends it
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self.worst_gap_s = max(self._gaps)

    async def _tick(self) -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(TICK_S)
            now = time.perf_counter()
            self._gaps.append(now - last)
            last = now


class ExtraMemory:
    """How far the resident memory of the process rises above its start in a `with` block.

    Freed memory is given back first, else what the block needs would hide in it. Elsewhere than on Linux the
    mark of the whole process life is used, which tells less than the truth.

    Attributes:
        mb: The rise.
    """

    mb: float

    def __enter__(self) -> ExtraMemory:
        gc.collect()
        if sys.platform == "linux":
            ctypes.CDLL(None).malloc_trim(0)
            Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
        self._before = peak_rss_mb()
        return self

    def __exit__(self, *_: object) -> None:
        self.mb = peak_rss_mb() - self._before


def peak_rss_mb() -> float:
    """Return the high-water mark of the resident memory.

    On Linux not by getrusage, whose value may be the parent's: it survives the start of a new program.
    """
    if _STATUS.exists():
        (kib,) = [line.split()[1] for line in _STATUS.open() if line.startswith("VmHWM")]
        return int(kib) * 1024 / MB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MB
