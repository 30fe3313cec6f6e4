"""Work in threads that takes its time, so that what goes on behind a cancellation can be seen."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class _SlowExecutor(ThreadPoolExecutor):
    """Begins each piece of work late."""

    def __init__(self, delay_s: float) -> None:
        super().__init__(8, "asyncio-slow")
        self._delay_s = delay_s

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a function in a thread, after the delay."""

        def late() -> Any:
            time.sleep(self._delay_s)
            return function(*args, **kwargs)

        return super().submit(late)


@contextmanager
def slow_threads(delay_s: float) -> Iterator[None]:
    """Delay what the running loop hands to its threads (`asyncio.to_thread`) while the block runs."""
    loop = asyncio.get_running_loop()
    slow = _SlowExecutor(delay_s)
    loop.set_default_executor(slow)
    try:
        yield
    finally:
        loop.set_default_executor(
            ThreadPoolExecutor(thread_name_prefix="asyncio")
        )  # as Python does
        slow.shutdown(wait=False)
