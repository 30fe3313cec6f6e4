"""Hands rows to metric sinks from a thread of its own, so that no sink can slow or stop a training."""

from __future__ import annotations

import atexit
import logging
import queue
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from art.books.sinks import Sink, SinkContext

_logger = logging.getLogger(__name__)

_MAX_ROWS_WAITING = 10_000
_RETRY_AFTER_S = 60.0
_MAX_FAILURES_IN_A_ROW = 5
_EXIT_TIMEOUT_S = 10.0
_POLL_S = 0.01


@dataclass
class _Row:
    metrics: dict[str, float]
    step: int


@dataclass
class _Request:
    """Asks the thread for something, and tells when it is done."""

    kind: Literal["open", "flush", "close"]
    is_done: threading.Event = field(default_factory=threading.Event)


class SinkDispatcher:
    """Delivers rows to the sinks of one model: a bounded queue and one daemon thread.

    A sink that raises is warned of once, rests, is opened again with the next row (the rows in between wait,
    in bounded number), and is given up after five failures in a row. What is still undelivered when Python
    exits gets ten seconds.

    Args:
        sinks: Where the rows go.
        context: Whose rows they are.
        max_waiting: How many rows may wait; more are left out, with one warning.
        retry_after_s: How long a sink rests after a failure.
    """

    def __init__(
        self,
        sinks: Sequence[Sink],
        context: SinkContext,
        *,
        max_waiting: int = _MAX_ROWS_WAITING,
        retry_after_s: float = _RETRY_AFTER_S,
    ) -> None:
        self._is_exiting = threading.Event()
        self._outlets = [
            _Outlet(
                sink, context, max_waiting, retry_after_s, self._exit_before_sinks, self._is_exiting
            )
            for sink in sinks
        ]
        self._queue: queue.Queue[_Row | _Request] = queue.Queue(max_waiting)
        self._lock = (
            threading.Lock()
        )  # guards `_thread`, and that a row never meets an ending thread
        self._thread: threading.Thread | None = None
        self._has_warned_full = False

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Take a row for delivery; returns at once and never raises."""
        if self._outlets and not self._put(_Row(dict(metrics), step)) and not self._has_warned_full:
            self._has_warned_full = True
            _logger.warning(
                "a metric sink is too slow and %d rows wait, so rows are left out there; "
                "the history on disk is complete",
                self._queue.maxsize,
            )

    def open(self, timeout_s: float) -> bool:
        """Open the sinks now instead of with the first row; return whether that was done in time."""
        return self._ask("open", timeout_s)

    def flush(self, timeout_s: float) -> bool:
        """Wait until all rows so far were offered to the sinks; return whether that was done in time."""
        return self._thread is None or self._ask("flush", timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Deliver what waits and close the sinks; return whether that was done in time.

        Repeatable; a later row opens the sinks again.
        """
        if self._thread is None:
            return True
        is_closed = self._ask("close", timeout_s)
        if not is_closed:
            _logger.warning(
                "metric sinks did not finish within %g s and are left behind; "
                "the history on disk is complete",
                timeout_s,
            )
        return is_closed

    def _ask(self, kind: Literal["open", "flush", "close"], timeout_s: float) -> bool:
        if not self._outlets:
            return True
        deadline_s = time.monotonic() + timeout_s
        request = _Request(kind)
        while not self._put(request):
            if time.monotonic() >= deadline_s:
                return False
            time.sleep(_POLL_S)
        return request.is_done.wait(max(0.0, deadline_s - time.monotonic()))

    def _put(self, item: _Row | _Request) -> bool:
        """Queue an item for the thread, which is started if need be; return False if the queue is full."""
        with self._lock:
            # Not alive although never ended: this is a forked child.
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="art-sinks", daemon=True)
                self._thread.start()
                atexit.register(self._close_at_exit)
            try:
                self._queue.put_nowait(item)
            except queue.Full:
                return False
            return True

    def _work(self) -> None:
        while True:
            item = self._queue.get()
            if isinstance(item, _Row):
                for outlet in self._outlets:
                    outlet.offer(item)
                continue
            for outlet in self._outlets:
                outlet.serve(item.kind)
            is_last = item.kind == "close" and self._end_thread()
            item.is_done.set()
            if is_last:
                return

    def _end_thread(self) -> bool:
        with self._lock:
            if not self._queue.empty():
                return False
            self._thread = None
        atexit.unregister(self._close_at_exit)
        return True

    def _exit_before_sinks(self) -> None:
        # Exit handlers run last to first: move ours behind those that a sink registered while it opened.
        atexit.unregister(self._close_at_exit)
        atexit.register(self._close_at_exit)

    def _close_at_exit(self) -> None:
        self._is_exiting.set()
        self.close(_EXIT_TIMEOUT_S)


class _Outlet:
    """One sink, kept from doing harm. Used by the dispatcher's thread alone."""

    def __init__(
        self,
        sink: Sink,
        context: SinkContext,
        max_waiting: int,
        retry_after_s: float,
        on_open: Callable[[], None],
        is_exiting: threading.Event,
    ) -> None:
        self._sink = sink
        self._context = context
        self._retry_after_s = retry_after_s
        self._on_open = on_open
        self._is_exiting = is_exiting
        self._rows: deque[_Row] = deque(maxlen=max_waiting)
        self._is_open = False
        self._num_failures = 0  # in a row
        self._rest_until_s = 0.0
        self._has_warned = False

    def offer(self, row: _Row) -> None:
        """Deliver a row after those that wait, or let it wait while the sink rests."""
        self._rows.append(row)
        self.serve("flush")

    def serve(self, kind: Literal["open", "flush", "close"]) -> None:
        """Do what a request asks; never raises."""
        while self._is_usable():
            try:
                if kind == "open" or self._rows:
                    self._ensure_open()
                while self._rows:
                    # Taken out first: a row that the sink cannot digest must not block the rest.
                    row = self._rows.popleft()
                    self._sink.log(row.metrics, row.step)
                    self._num_failures = 0
                if kind == "close" and self._is_open:
                    self._is_open = False
                    self._sink.close()
            except Exception as error:  # noqa: BLE001 - a sink may fail in any way; training goes on
                self._fail(error)
            else:
                return

    def _is_usable(self) -> bool:
        return (
            self._num_failures < _MAX_FAILURES_IN_A_ROW and time.monotonic() >= self._rest_until_s
        )

    def _ensure_open(self) -> None:
        if not self._is_open:
            self._sink.open(self._context)
            self._is_open = True
            self._on_open()

    def _fail(self, error: Exception) -> None:
        self._is_open = False
        self._num_failures += 1
        self._rest_until_s = time.monotonic() + self._retry_after_s
        if self._num_failures >= _MAX_FAILURES_IN_A_ROW:
            self._rows.clear()
        if self._has_warned:
            return
        self._has_warned = True
        if self._is_exiting.is_set():
            # Python starts no threads by now, which most sinks need to open.
            outlook = "the program ended first: call `await model.close()` before its end"
        else:
            outlook = (
                f"it is tried again in {self._retry_after_s:g} s, and given up after "
                f"{_MAX_FAILURES_IN_A_ROW} failures in a row. Training goes on"
            )
        _logger.warning(
            "metric sink %s failed (%s: %s); %s. The history on disk is complete",
            type(self._sink).__name__,
            type(error).__name__,
            error,
            outlook,
        )
