"""Hands rows to metric sinks from threads of their own, so that no sink can slow or stop a training."""

from __future__ import annotations

import asyncio
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
_LONGEST_REST = 16  # times that
_OPEN_TIMEOUT_S = 10.0
_EXIT_TIMEOUT_S = 15.0
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

    A sink that raises is warned of once, rests, and is opened again with the next row (the rows in between
    wait, in bounded number); the rests grow while it goes on failing. One that hangs holds up no other.

    What is still undelivered when Python exits gets fifteen seconds, after which sinks are left behind. By then
    Python may start no more threads (3.12), which wandb needs to open. So `hold_loop` keeps the event loop
    from ending, for up to ten seconds, while sinks open. A program without an event loop that ends in that
    moment may lose the rows at the sink, and is told; `close` leaves nothing to chance.

    Args:
        sinks: Where the rows go.
        context: Whose rows they are.
        max_waiting: How many rows may wait; more are left out, with one warning for each sink.
        retry_after_s: How long a sink rests after a failure; up to sixteen times that after several in a row.
    """

    def __init__(
        self,
        sinks: Sequence[Sink],
        context: SinkContext,
        *,
        max_waiting: int = _MAX_ROWS_WAITING,
        retry_after_s: float = _RETRY_AFTER_S,
    ) -> None:
        self.sinks = tuple(sinks)
        self._is_holding = False
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

    def open(self, timeout_s: float, only: Sink | None = None) -> bool:
        """Open all sinks, or only one, instead of with the first row; return whether that was done in time."""
        lanes = [lane for lane in self._lanes if only is None or lane.serves(only)]
        return _ask("open", lanes, timeout_s)

    def hold_loop(self) -> None:
        """Keep the running event loop from ending while sinks open, for a bounded time; returns at once."""
        if not self._is_holding and any(lane.is_opening for lane in self._lanes):
            self._is_holding = True
            # `asyncio.run` waits for the threads of its executor.
            asyncio.get_running_loop().run_in_executor(None, self._wait_until_open)

    def _wait_until_open(self) -> None:
        while any(lane.is_opening for lane in self._lanes):
            time.sleep(_POLL_S)
        self._is_holding = False

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
        self._started_s = 0.0
        self._has_warned_full = False

    @property
    def is_running(self) -> bool:
        """Whether there is a thread that a close has not ended yet."""
        return self._thread is not None

    @property
    def is_opening(self) -> bool:
        """Whether the sink was not tried yet since the thread started, a short time ago."""
        age_s = time.monotonic() - self._started_s
        return self.is_running and not self._outlet.was_tried and age_s < _OPEN_TIMEOUT_S

    def serves(self, sink: Sink) -> bool:
        """Tell whether this is the lane of a sink."""
        return self._outlet.sink is sink

    def log(self, row: _Row) -> None:
        """Take a row; returns at once and never raises."""
        if not self.put(row) and not self._has_warned_full:
            self._has_warned_full = True
            logger.warning(
                "a metric sink is too slow (%d rows wait) or gets no thread, so rows are left out there; "
                "the history on disk is complete",
                self._queue.maxsize,
            )

    def put(self, item: _Row | _Request) -> bool:
        """Queue an item for the thread, which is started if need be; return False if that is not possible."""
        with self._lock:
            try:
                self._ensure_thread()
                self._queue.put_nowait(item)
            except (queue.Full, RuntimeError):  # RuntimeError: at exit, or at the limit of threads
                return False
            return True

    def _ensure_thread(self) -> None:
        # Not alive although never ended: this is a forked child, or the sink killed its thread.
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(target=self._work, name="art-sink", daemon=True)
            thread.start()
            self._thread = thread
            self._started_s = time.monotonic()
            self._on_start()

    def _work(self) -> None:
        while True:
            item = self._queue.get()
            if isinstance(item, _Row):
                self._outlet.offer(item)
                continue
            self._outlet.serve(item.kind)
            if item.kind == "close":
                self._outlet.tell_of_undelivered()
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
        self.sink = sink
        self._context = context
        self._retry_after_s = retry_after_s
        self._on_open = on_open
        self._is_exiting = is_exiting
        self._rows: deque[_Row] = deque(maxlen=max_waiting)
        self.was_tried = False  # to open, since the last close
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
        if kind == "close":
            self._rest_until_s = 0.0  # there is no later: a sink that rests is tried once more
        while time.monotonic() >= self._rest_until_s:
            try:
                if kind == "open" or self._rows:
                    self._ensure_open()
                while self._rows:
                    # Taken out first: a row that the sink cannot digest must not block the rest.
                    row = self._rows.popleft()
                    self.sink.log(row.metrics, row.step)
                    self._num_failures = 0
                if kind == "close" and self._is_open:
                    self._is_open = False
                    self.was_tried = False
                    self.sink.close()
            except BaseException as error:  # noqa: BLE001 - SystemExit, too, would end but this thread, without a word
                could_open = self._is_open
                self._fail(error)
                if not could_open:
                    return
            else:
                return

    def tell_of_undelivered(self) -> None:
        """Tell how many rows a close could not deliver; they wait for a later one. The warning came before."""
        if self._rows:
            logger.info(
                "metric sink %s still waits for %d row(s) that it would not take; the history on disk is complete",
                type(self.sink).__name__,
                len(self._rows),
            )

    def _ensure_open(self) -> None:
        if self._is_open:
            return
        try:
            self.sink.open(self._context)
            self._is_open = True
        finally:
            self.was_tried = True
            self._on_open()  # a sink that failed may have left an exit handler, too

    def _fail(self, error: BaseException) -> None:
        self._is_open = False
        rests = min(2**self._num_failures, _LONGEST_REST)
        self._num_failures += 1
        self._rest_until_s = time.monotonic() + rests * self._retry_after_s
        if self._has_warned:
            return
        self._has_warned = True
        if self._is_exiting.is_set():
            # Python starts no threads by now, which most sinks need to open.
            outlook = "the program ended first: call `await model.close()` before its end"
        else:
            outlook = f"it is tried again in {self._retry_after_s:g} s. Training goes on"
        logger.warning(
            "metric sink %s failed (%s: %s); %s. The history on disk is complete",
            type(self.sink).__name__,
            type(error).__name__,
            error,
            outlook,
        )
