"""Mutants that leave something behind, or cannot be closed."""

from __future__ import annotations

import asyncio
import atexit
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

from art_conformance.mutants import mutant
from art_conformance.reference import ReferenceBackend

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

# Each leftover goes by itself after a while, so that the next mutant's process is clean.
_LINGERS_S = 10.0


@mutant(killed_by=("CONC-07",))
class LeaksAThread(ReferenceBackend):
    """A thread that watches over the training is never told to end."""

    async def register(self, model: Any) -> None:
        """Start it."""
        await super().register(model)
        stop = threading.Event()
        threading.Thread(target=stop.wait, args=(_LINGERS_S,), daemon=True).start()


@mutant(killed_by=("CONC-07",))
class LeaksATask(ReferenceBackend):
    """A task that watches over the training is never cancelled."""

    async def register(self, model: Any) -> None:
        """Start it."""
        await super().register(model)
        self._watcher = asyncio.create_task(asyncio.sleep(_LINGERS_S), name="watcher")


@mutant(killed_by=("CONC-07",))
class LeaksAProcess(ReferenceBackend):
    """The trainer's process outlives close()."""

    async def register(self, model: Any) -> None:
        """Start it."""
        await super().register(model)
        code = f"import time; time.sleep({_LINGERS_S})"
        process = subprocess.Popen([sys.executable, "-c", code])  # noqa: ASYNC220, S603
        atexit.register(process.wait)
        atexit.register(process.kill)


@mutant(killed_by=("CONC-07",))
class LeaksAFile(ReferenceBackend):
    """A file that is opened for each train is never closed."""

    async def _commit(self, model: Any, step: int, weight: float) -> None:
        await super()._commit(model, step, weight)
        os.open(os.devnull, os.O_RDONLY)


@mutant(killed_by=("CONC-07",))
class StopsNothing(ReferenceBackend):
    """close() does nothing: the endpoint goes on."""

    async def close(self) -> None:
        """Do nothing."""


@mutant(killed_by=("CONC-08",))
class ClosesOnlyOnce(ReferenceBackend):
    """A second close() raises."""

    _is_closed = False

    async def close(self) -> None:
        """Close, or raise."""
        if self._is_closed:
            raise RuntimeError("already closed")
        self._is_closed = True
        await super().close()


@mutant(killed_by=("CONC-08",), timeout_s=3)
class HangsWhenClosed(ReferenceBackend):
    """A train waits for its trainer without end, where close() has ended that meanwhile."""

    _is_closed = False

    async def _train_model(self, *args: Any, **kwargs: Any) -> AsyncIterator[dict[str, float]]:
        async for event in super()._train_model(*args, **kwargs):
            yield event
            await asyncio.sleep(0.05)
            if self._is_closed:
                await asyncio.Event().wait()

    async def close(self) -> None:
        """Close."""
        self._is_closed = True
        await super().close()


@mutant(killed_by=("CONC-13",))
class UsesWhatItClosed(ReferenceBackend):
    """After close() the endpoints are found as before, and asked, though they have ended."""

    async def close(self) -> None:
        """Close, and forget nothing."""
        for endpoint in self._endpoints.values():
            await endpoint.close()
