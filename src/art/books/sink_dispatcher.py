"""Hands rows to metric sinks from threads of their own, so that no sink can slow or stop a training."""

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

logger = logging.getLogger(__name__)

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
    """Delivers rows to the sinks of one model, each from a bounded queue by a daemon thread of its own.

    A sink that raises is warned of once, rests, is opened again with the next row (the rows in between wait,
    in bounded number), and is given up after five failures in a row. One that hangs holds up no other. What is
    still undelivered when Python exits gets ten seconds.

    Args:
        sinks: Where the rows go.
        context: Whose rows they are.
        max_waiting: How many rows may wait; more are left out, with one warning for each sink.
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
        self._exit_lock = threading.Lock()  # a lane that starts must not meet an unregistration
        self._lanes = [
            _Lane(
                _Outlet(
                    sink, context, max_waiting, retry_after_s, self._exit_first, self._is_exiting
                ),
                max_waiting,
                self._exit_first,
            )
            for sink in sinks
        ]

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Take a row for delivery; returns at once and never raises."""
        for lane in self._lanes:
            lane.log(_Row(dict(metrics), step))

    def open(self, timeout_s: float) -> bool:
        """Open the sinks now instead of with the first row; return whether that was done in time."""
        return _ask("open", self._lanes, timeout_s)

    def flush(self, timeout_s: float) -> bool:
        """Wait until all rows so far were offered to the sinks; return whether that was done in time."""
        return _ask("flush", [lane for lane in self._lanes if lane.is_running], timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Deliver what waits and close the sinks; return whether that was done in time.

        Repeatable; a later row opens the sinks again.
        """
        is_closed = _ask("close", [lane for lane in self._lanes if lane.is_running], timeout_s)
        with self._exit_lock:
            if not any(lane.is_running for lane in self._lanes):
                atexit.unregister(self._close_at_exit)
        if not is_closed:
            logger.warning(
                "metric sinks did not finish within %g s and are left behind; "
                "the history on disk is complete",
                timeout_s,
            )
        return is_closed

    def _exit_first(self) -> None:
        # Exit handlers run last to first: move ours behind those that a sink registered while it opened.
        with self._exit_lock:
            atexit.unregister(self._close_at_exit)
            atexit.register(self._close_at_exit)

    def _close_at_exit(self) -> None:
        self._is_exiting.set()
        self.close(_EXIT_TIMEOUT_S)


def _ask(kind: Literal["open", "flush", "close"], lanes: Sequence[_Lane], timeout_s: float) -> bool:
    """Ask all lanes at once, and return whether all were done in time."""
    deadline_s = time.monotonic() + timeout_s
    requests = [(lane, _Request(kind)) for lane in lanes]
    waiting = requests
    while waiting := [(lane, request) for lane, request in waiting if not lane.put(request)]:
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(_POLL_S)
    return all(
        request.is_done.wait(max(0.0, deadline_s - time.monotonic())) for _, request in requests
    )


class _Lane:
    """The queue and the thread of one sink."""

    def __init__(self, outlet: _Outlet, max_waiting: int, on_start: Callable[[], None]) -> None:
        self._outlet = outlet
        self._on_start = on_start
        self._queue: queue.Queue[_Row | _Request] = queue.Queue(max_waiting)
        # Guards `_thread`, and that a row never meets an ending thread.
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._has_warned_full = False

    @property
    def is_running(self) -> bool:
        """Whether there is a thread that a close has not ended yet."""
        return self._thread is not None

    def log(self, row: _Row) -> None:
        """Take a row; returns at once and never raises."""
        if not self.put(row) and not self._has_warned_full:
            self._has_warned_full = True
            logger.warning(
                "a metric sink is too slow and %d rows wait, so rows are left out there; "
                "the history on disk is complete",
                self._queue.maxsize,
            )

    def put(self, item: _Row | _Request) -> bool:
        """Queue an item for the thread, which is started if need be; return False if the queue is full."""
        with self._lock:
            # Not alive although never ended: this is a forked child.
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="art-sink", daemon=True)
                self._thread.start()
                self._on_start()
            try:
                self._queue.put_nowait(item)
            except queue.Full:
                return False
            return True

    def _work(self) -> None:
        while True:
            item = self._queue.get()
            if isinstance(item, _Row):
                self._outlet.offer(item)
                continue
            self._outlet.serve(item.kind)
            is_last = item.kind == "close" and self._end_thread()
            item.is_done.set()
            if is_last:
                return

    def _end_thread(self) -> bool:
        with self._lock:
            if not self._queue.empty():
                return False
            self._thread = None
        return True


class _Outlet:
    """One sink, kept from doing harm. Used by its lane's thread alone."""

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
            except BaseException as error:  # noqa: BLE001 - SystemExit, too, would end but this thread, without a word
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

    def _fail(self, error: BaseException) -> None:
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
        logger.warning(
            "metric sink %s failed (%s: %s); %s. The history on disk is complete",
            type(self._sink).__name__,
            type(error).__name__,
            error,
            outlook,
        )
