"""The parent's side of a supervised child process; `child` is the other side.

The child gets its configuration over stdin, sends events over stdout, and ends when stdin does, so nothing
is left running whatever happens to the parent. The tail of its log is kept for error messages.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

logger = logging.getLogger(__name__)

# Of a failure in a process of a process, the cause stands far above the end.
_TAIL_LINES = 200
_EXITED = {"event": "exited"}


def python_module(module: str) -> list[str]:
    """Return the command that runs a module with this interpreter."""
    # -P: a file of the user's working directory must not shadow an import of the child.
    return [sys.executable, "-P", "-m", module]


class ChildProcess:
    """One child process, the leader of a process group of its own.

    Events may be awaited from any event loop, by one consumer at a time.
    """

    def __init__(
        self, command: Sequence[str], what: str, environment: Mapping[str, str] | None = None
    ) -> None:
        """Start the process; it waits for its configuration.

        Args:
            command: The program and its arguments; `python_module` spells one of ours.
            what: Names the process in messages, such as "inference server of model 'm'".
            environment: What it sees besides this process's own environment.
        """
        self.what = what
        self._log: collections.deque[str] = collections.deque(maxlen=_TAIL_LINES)
        self._events: collections.deque[dict[str, Any]] = collections.deque()
        self._wake: asyncio.Future[None] | None = None
        self._lock = threading.Lock()
        self._is_killed = False
        self._process = subprocess.Popen(  # noqa: S603 - a program of ours, no shell
            [*command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={
                **os.environ,
                "TOKENIZERS_PARALLELISM": "false",
                "PYTHONUNBUFFERED": "1",
                **(environment or {}),
            },
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # what it starts itself can then be ended with it
        )
        self._readers = [
            threading.Thread(target=read, args=(stream,), name=f"child-{label}", daemon=True)
            for read, stream, label in (
                (self._read_log, self._process.stderr, "log"),
                (self._read_events, self._process.stdout, "events"),
            )
        ]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def send(self, message: dict[str, Any]) -> None:
        """Send the configuration (first) or a command. A child that is gone takes nothing; its exit tells."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):  # the child died, or its pipe was closed by kill()
            logger.debug("%s takes no more commands", self.what)

    async def next_event(self, timeout_s: float) -> dict[str, Any]:
        """Wait for the child's next event; `{"event": "exited"}` once it has ended.

        Raises:
            TimeoutError: Nothing came in time.
        """
        async with asyncio.timeout(timeout_s):
            while True:
                with self._lock:
                    if self._events:
                        # The end stays in the queue: whoever asks later hears of it too.
                        return (
                            self._events[0]
                            if self._events[0] is _EXITED
                            else self._events.popleft()
                        )
                    self._wake = asyncio.get_running_loop().create_future()
                await self._wake

    def tail(self) -> str:
        """Return the last lines of the child's log."""
        return "\n".join(self._log)

    def failure(self) -> str | None:
        """Return None while the child runs, else its exit status with the tail of its log."""
        status = self._process.poll()
        if status is None:
            return None
        for reader in self._readers:  # what it said last is the most telling
            reader.join(timeout=1.0)
        how = (
            f"was killed by signal {-status}" if status < 0 else f"ended with exit status {status}"
        )
        return f"the {self.what} (pid {self.pid}) {how}; the end of its log:\n{self.tail() or '(empty)'}"

    async def has_ended(self, grace_s: float) -> bool:
        """Return whether the child is gone, after a short while: its connections close just before."""
        try:
            await asyncio.to_thread(self._process.wait, grace_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """End the child and all that it started, at once, and wait for it. Repeatable.

        There is no gentler way, and no need of one: what a child leaves on disk is whole at any moment.
        """
        self._kill_group()
        self._process.wait()
        self._release()

    def _kill_group(self) -> None:
        if not self._is_killed:  # later the number may be somebody else's
            # The group lives as long as any of its processes does, even if the child itself is gone.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self._is_killed = True

    def _release(self) -> None:
        for reader in self._readers:
            reader.join(timeout=5.0)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:  # something unsent was left for a dead child
                    logger.debug("%s left something unread", self.what)

    def _read_log(self, stream: IO[str]) -> None:
        for line in stream:
            self._log.append(line.rstrip("\n"))
            logger.debug("%s: %s", self.what, line.rstrip("\n"))

    def _read_events(self, stream: IO[str]) -> None:
        for line in stream:
            self._put(json.loads(line))
        self._put(_EXITED)
        # It is about to end. What it started itself goes with it, however it ended.
        with contextlib.suppress(ChildProcessError):  # somebody else has waited for it
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        self._kill_group()

    def _put(self, event: dict[str, Any]) -> None:
        with self._lock:
            self._events.append(event)
            wake, self._wake = self._wake, None
        if wake is not None:
            try:
                wake.get_loop().call_soon_threadsafe(_set_done, wake)
            except RuntimeError:  # the loop that waited is closed; the event waits for the next one
                logger.debug("nobody waits for the events of %s", self.what)


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
