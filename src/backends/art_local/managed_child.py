"""A child process that is started when first needed, and anew when it has ended meanwhile."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from art_local.errors import error_from_event
from art_local.process import ChildProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from art.errors import BackendError

# Between the moment a dying process closes its connections and the one it is gone.
_END_S = 1.0


class ManagedChild:
    """A process of a model, or one that models share.

    `ensure` is for one caller at a time; the end (`close`, `kill`) may come at any moment, from anywhere.

    Args:
        command: The program and its arguments.
        what: Names the process in messages.
        error: What is raised when it ends, hangs or does not come up.
        start_timeout_s: How long it may take to come up.
        environment: What it sees besides this process's own environment.
    """

    def __init__(
        self,
        command: Sequence[str],
        what: str,
        error: type[BackendError],
        start_timeout_s: float,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._command = command
        self._environment = environment
        self._what = what
        self._error = error
        self._start_timeout_s = start_timeout_s
        self._process: ChildProcess | None = None
        self._is_ready = False
        self._is_closed = False

    @property
    def process(self) -> ChildProcess | None:
        """The process, alive or dead; None before the first start."""
        return self._process

    @property
    def is_up(self) -> bool:
        """Whether it runs and has told that it is ready."""
        return self._is_ready and self.failure() is None

    def failure(self) -> str | None:
        """Return None while it runs or was never started, else how it ended."""
        return self._process.failure() if self._process is not None else None

    async def has_ended(self) -> bool:
        """Return whether it is gone; waits a moment where it may be about to."""
        return self._process is None or await self._process.has_ended(_END_S)

    def spawn(self) -> ChildProcess:
        """Start the process, so that its imports run while something else is waited for."""
        if self._is_closed:
            raise self._error(f"the {self._what} is not started: it was closed")
        if self._process is None:
            self._process = ChildProcess(self._command, self._what, self._environment)
        return self._process

    async def ensure(
        self,
        config: Callable[[], dict[str, Any]],
        on_ready: Callable[[dict[str, Any]], None] = lambda _event: None,
    ) -> ChildProcess:
        """Return the process, up and configured.

        Args:
            config: Makes its configuration; called for each start.
            on_ready: Takes the event of each start.

        Raises:
            BackendError: The process did not come up; of the class that this object was given.
            ArtError: What the process itself found wrong, such as a ConfigurationError.
        """
        if self._process is not None and self.failure() is not None:
            self._process.kill()  # it is dead; this lets go of its pipes
            self._process, self._is_ready = None, False
        process = self.spawn()
        if self._is_ready:
            return process
        try:
            event = await self._start(process, config())
        # Also when cancelled: a later call could not know how far this start has come.
        except BaseException:
            process.kill()
            raise
        on_ready(event)
        self._is_ready = True
        return process

    async def _start(self, process: ChildProcess, config: dict[str, Any]) -> dict[str, Any]:
        process.send(config)
        event = await self.next_event(process, self._start_timeout_s)
        if event["event"] != "ready":
            raise error_from_event(event, process.tail(), self._error)
        return event

    async def next_event(self, process: ChildProcess, timeout_s: float) -> dict[str, Any]:
        """Wait for an event of the running process; one that is silent for too long is ended.

        Raises:
            BackendError: It has ended, or was silent; with the end of its log.
        """
        try:
            event = await process.next_event(timeout_s)
        except TimeoutError:
            self.end_hung()
            raise self._error(
                f"the {self._what} gave no sign of life for {timeout_s:g} s and was ended; "
                f"the end of its log:\n{process.tail()}"
            ) from None
        if event["event"] == "exited":
            if self._is_closed:
                raise self._error(f"the {self._what} was ended: it was closed")
            await process.has_ended(_END_S)
            raise self._error(process.failure() or f"the {self._what} closed its channel")
        return event

    def end_hung(self) -> None:
        """End a process that does not answer; `ensure` starts another."""
        if self._process is not None:
            self._process.kill()

    async def close(self) -> None:
        """End the process, for good. Repeatable."""
        await asyncio.to_thread(self.kill)

    def kill(self) -> None:
        """End the process, for good, from code that cannot await. Repeatable."""
        self._is_closed = True
        if self._process is not None:
            self._process.kill()
