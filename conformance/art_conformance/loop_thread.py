"""An event loop in a thread of its own, so that an adapter that hangs can be told and left behind."""

from __future__ import annotations

import asyncio
import concurrent.futures
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Any, TypeVar

from art_conformance.failure import place_of

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")

# What a cancelled coroutine is given to clean up before its loop is given up.
_GRACE_S = 5.0


class HungError(Exception):
    """Raised where a call did not end in time; the message tells where it was."""


class LoopThread:
    """Runs coroutines, one after the other, on an event loop in a daemon thread.

    Attributes:
        is_lost: A call hung beyond cancellation: the loop is of no further use.
    """

    def __init__(self) -> None:
        self.is_lost = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="conformance", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        while True:
            try:
                self._loop.run_forever()
                break
            except (SystemExit, KeyboardInterrupt):  # an adapter's: its task has it too
                continue
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Run a coroutine to its end and return its result, or raise what it raises.

        Raises:
            HungError: It did not end in time. It was cancelled; where it did not heed that, `is_lost` is set.
        """
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        if _ends_within(timeout_s, future):
            try:
                return future.result()
            except (
                KeyboardInterrupt
            ) as error:  # an adapter's: a person's arrives while this thread waits
                raise RuntimeError("KeyboardInterrupt was raised") from error
        where = self._where()
        future.cancel()
        ended = threading.Event()
        self._loop.call_soon_threadsafe(ended.set)
        self.is_lost = not ended.wait(_GRACE_S) or not self._all_tasks_ended()
        raise HungError(f"not finished after {timeout_s:g} s; it was {where}")

    def _all_tasks_ended(self) -> bool:
        async def gather() -> bool:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            if not tasks:
                return True
            _, pending = await asyncio.wait(tasks, timeout=_GRACE_S)
            return not pending

        future = asyncio.run_coroutine_threadsafe(gather(), self._loop)
        return _ends_within(2 * _GRACE_S, future) and future.result()

    def _where(self) -> str:
        """Say what the loop is doing: where it blocks, or what its task waits for."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        stack = traceback.extract_stack(frame) if frame is not None else []
        if not any(entry.name == "select" for entry in stack[-2:]):
            return f"blocking the event loop at {_last_place(stack)}"
        tasks = list(asyncio.all_tasks(self._loop))
        frames = [frame for task in tasks for frame in task.get_stack()]
        places = traceback.extract_stack(frames[-1]) if frames else []
        return f"waiting at {_last_place(places)}"

    def close(self) -> None:
        """Stop the loop. One that is lost, or whose pool has work without end, is left behind in its daemon thread."""
        if self.is_lost:
            return
        self._all_tasks_ended()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_GRACE_S)


def _ends_within(timeout_s: float, future: concurrent.futures.Future[Any]) -> bool:
    # Not by the future's own timeout: an adapter may raise TimeoutError itself.
    return bool(concurrent.futures.wait([future], timeout_s).done)


def _last_place(stack: list[traceback.FrameSummary]) -> str:
    return place_of(stack[-1]) if stack else "an unknown place"
