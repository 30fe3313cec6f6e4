from __future__ import annotations

import asyncio
import ctypes
import itertools
import logging
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from art.books import sink_dispatcher
from art.books.sink_dispatcher import SinkDispatcher
from art.books.sinks import SinkContext

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

TIMEOUT_S = 10.0


class RecordingSink:
    """Writes down every call; raises where told to; waits at a gate in `log`."""

    def __init__(self, *, failing_opens: int = 0, bad_steps: frozenset[int] = frozenset()) -> None:
        self.calls: list[object] = []
        self.failing_opens = failing_opens
        self.bad_steps = bad_steps
        self.gate = threading.Event()
        self.gate.set()
        self.close_gate = threading.Event()
        self.close_gate.set()

    def open(self, context: SinkContext) -> None:
        self.calls.append(f"open {context.name}")
        if self.failing_opens > 0:
            self.failing_opens -= 1
            raise ConnectionError("no network")

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self.gate.wait()
        if step in self.bad_steps:
            raise ValueError("bad row")
        self.calls.append((step, dict(metrics)))

    def close(self) -> None:
        self.close_gate.wait()
        self.calls.append("close")

    @property
    def steps(self) -> list[int]:
        return [call[0] for call in self.calls if isinstance(call, tuple)]


@pytest.fixture
def context(tmp_path: Path) -> SinkContext:
    return SinkContext("project", "m", tmp_path)


@pytest.fixture
def sink() -> Iterator[RecordingSink]:
    sink = RecordingSink()
    yield sink
    sink.gate.set()


def test_rows_arrive_in_order_between_open_and_close(
    context: SinkContext, sink: RecordingSink
) -> None:
    """A sink is opened with the first row, gets every row in order, and is closed once."""
    dispatcher = SinkDispatcher([sink], context)
    metrics = {"val/x": 1.0}
    dispatcher.log(metrics, 5)
    metrics["val/x"] = 2.0
    dispatcher.log(metrics, 3)
    assert dispatcher.close(TIMEOUT_S)
    assert dispatcher.close(TIMEOUT_S)
    assert sink.calls == ["open m", (5, {"val/x": 1.0}), (3, {"val/x": 2.0}), "close"]


def test_nothing_happens_without_a_row(context: SinkContext, sink: RecordingSink) -> None:
    """A model that logs nothing opens no sink and starts no thread."""
    dispatcher = SinkDispatcher([sink], context)
    assert dispatcher.flush(TIMEOUT_S)
    assert dispatcher.close(TIMEOUT_S)
    assert sink.calls == []


def test_no_sinks_need_no_thread(context: SinkContext) -> None:
    """With no sink a row costs nothing."""
    before = threading.active_count()
    dispatcher = SinkDispatcher([], context)
    dispatcher.log({"val/x": 1.0}, 0)
    assert dispatcher.open(TIMEOUT_S)
    assert dispatcher.close(TIMEOUT_S)
    assert threading.active_count() == before


def test_sinks_can_be_opened_before_the_first_row(
    context: SinkContext, sink: RecordingSink
) -> None:
    """An early open is the same as that of the first row, and happens once."""
    dispatcher = SinkDispatcher([sink], context)
    assert dispatcher.open(TIMEOUT_S)
    assert sink.calls == ["open m"]
    dispatcher.log({}, 1)
    dispatcher.close(TIMEOUT_S)
    assert sink.calls == ["open m", (1, {}), "close"]


def test_close_ends_the_thread_and_a_later_row_starts_again(
    context: SinkContext, sink: RecordingSink
) -> None:
    """After a close no thread is left; a row after it opens the sink anew."""
    before = threading.active_count()
    dispatcher = SinkDispatcher([sink], context)
    for step in (1, 2):
        dispatcher.log({}, step)
        assert dispatcher.close(TIMEOUT_S)
    assert sink.calls == ["open m", (1, {}), "close", "open m", (2, {}), "close"]
    for thread in threading.enumerate():
        if thread.name == "art-sink":
            thread.join(TIMEOUT_S)
    assert threading.active_count() == before


def test_a_sink_that_hangs_blocks_nobody(
    context: SinkContext, sink: RecordingSink, caplog: pytest.LogCaptureFixture
) -> None:
    """While a sink hangs, rows are taken at once, deadlines hold, and what is too much is dropped with one warning."""
    sink.gate.clear()
    dispatcher = SinkDispatcher([sink], context, max_waiting=5)
    for step in range(20):
        dispatcher.log({}, step)
    assert not dispatcher.flush(0.05)
    assert not dispatcher.close(0.05)
    assert len([r for r in caplog.records if "too slow" in r.message]) == 1
    sink.gate.set()
    assert dispatcher.close(TIMEOUT_S)
    assert 5 <= len(sink.steps) <= 7


def test_c093_rows_wait_while_a_sink_cannot_open(
    context: SinkContext, caplog: pytest.LogCaptureFixture
) -> None:
    """A sink whose network is down gets all rows once it is back, after one warning."""
    sink = RecordingSink(failing_opens=3)
    dispatcher = SinkDispatcher([sink], context, retry_after_s=0.0)
    for step in range(4):
        dispatcher.log({}, step)
    assert dispatcher.close(TIMEOUT_S)
    assert sink.steps == [0, 1, 2, 3]
    assert len(caplog.records) == 1
    assert "no network" in caplog.text


def test_c093_a_sink_that_failed_rests(context: SinkContext) -> None:
    """Between two tries lies a rest, however many rows come."""
    sink = RecordingSink(failing_opens=99)
    dispatcher = SinkDispatcher([sink], context, retry_after_s=3600.0)
    for step in range(10):
        dispatcher.log({}, step)
    assert dispatcher.flush(TIMEOUT_S)
    assert sink.calls == ["open m"]
    assert dispatcher.close(TIMEOUT_S)


def test_closing_tries_a_resting_sink_once_more(context: SinkContext) -> None:
    """A blip in the last minute of a run does not cost its last rows."""
    sink = RecordingSink(failing_opens=1)
    dispatcher = SinkDispatcher([sink], context, retry_after_s=3600.0)
    for step in range(3):
        dispatcher.log({}, step)

    assert dispatcher.close(TIMEOUT_S)

    assert sink.calls == ["open m", "open m", (0, {}), (1, {}), (2, {}), "close"]


def test_rows_that_a_close_could_not_deliver_are_told(
    context: SinkContext, caplog: pytest.LogCaptureFixture
) -> None:
    """Their number is in the log; the one warning came with the first failure."""
    caplog.set_level(logging.INFO)
    dispatcher = SinkDispatcher([RecordingSink(failing_opens=99)], context)
    for step in range(3):
        dispatcher.log({}, step)

    assert dispatcher.close(TIMEOUT_S)

    assert "still waits for 3 row(s)" in caplog.records[-1].getMessage()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_c093_a_sink_that_keeps_failing_is_tried_ever_more_rarely(
    context: SinkContext, caplog: pytest.LogCaptureFixture
) -> None:
    """The rests between the tries double, and one warning is all that is said."""
    times_s: list[float] = []

    class Failing(RecordingSink):
        def open(self, context: SinkContext) -> None:
            times_s.append(time.monotonic())
            super().open(context)

    dispatcher = SinkDispatcher([Failing(failing_opens=99)], context, retry_after_s=0.02)
    while len(times_s) < 5:
        dispatcher.log({}, 0)
        assert dispatcher.flush(TIMEOUT_S)
    num_warnings = len(caplog.records)
    rests_s = [later - earlier for earlier, later in itertools.pairwise(times_s)]
    assert dispatcher.close(TIMEOUT_S)
    assert [rest_s >= 0.02 * 2**i for i, rest_s in enumerate(rests_s)] == [True] * 4
    assert num_warnings == 1


def test_one_bad_row_costs_only_itself(context: SinkContext) -> None:
    """Rows that a sink cannot take are left out, the others arrive, and no number of them ends the sink."""
    sink = RecordingSink(bad_steps=frozenset(range(1, 20, 2)))
    dispatcher = SinkDispatcher([sink], context, retry_after_s=0.0)
    for step in range(21):
        dispatcher.log({}, step)
    assert dispatcher.close(TIMEOUT_S)
    assert sink.steps == list(range(0, 21, 2))


def test_a_row_that_comes_during_a_close_is_delivered(
    context: SinkContext, sink: RecordingSink
) -> None:
    """A row logged while the sinks close opens them again by itself."""
    dispatcher = SinkDispatcher([sink], context)
    dispatcher.log({}, 1)
    assert dispatcher.flush(TIMEOUT_S)
    sink.close_gate.clear()
    assert not dispatcher.close(0.1)
    dispatcher.log({}, 2)
    sink.close_gate.set()
    assert dispatcher.flush(TIMEOUT_S)
    assert sink.steps == [1, 2]
    assert dispatcher.close(TIMEOUT_S)


def test_a_failing_sink_does_not_disturb_another(context: SinkContext, sink: RecordingSink) -> None:
    """Each sink fails for itself."""
    dispatcher = SinkDispatcher([RecordingSink(failing_opens=99), sink], context)
    dispatcher.log({}, 1)
    dispatcher.log({}, 2)
    assert dispatcher.close(TIMEOUT_S)
    assert sink.calls == ["open m", (1, {}), (2, {}), "close"]


def test_rows_from_many_threads_all_arrive(context: SinkContext, sink: RecordingSink) -> None:
    """Rows of several threads, with closes in between, are neither lost nor doubled."""
    dispatcher = SinkDispatcher([sink], context)

    def work(first: int) -> None:
        for step in range(first, first + 100):
            dispatcher.log({}, step)
            if step % 25 == 0:
                dispatcher.close(TIMEOUT_S)

    threads = [threading.Thread(target=work, args=(first,)) for first in (0, 100, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert dispatcher.close(TIMEOUT_S)
    assert sorted(sink.steps) == list(range(300))


def test_c100_rows_are_delivered_when_python_exits() -> None:
    """A script that ends without a close still delivers, before exit handlers that the sink registered."""
    program = """
import atexit, pathlib
from art.books.sinks import SinkContext, SinkDispatcher
class Printer:
    def open(self, context): atexit.register(print, "sink's own exit handler")
    def log(self, metrics, step): print("row", step)
    def close(self): print("close", flush=True)
dispatcher = SinkDispatcher([Printer()], SinkContext("p", "m", pathlib.Path(".")))
dispatcher.log({}, 1)
dispatcher.log({}, 2)
dispatcher.flush(10)
dispatcher.log({}, 3)
"""
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines() == [
        "row 1",
        "row 2",
        "row 3",
        "close",
        "sink's own exit handler",
    ]
    assert result.stderr == ""


def test_a_hanging_sink_does_not_hold_up_another(context: SinkContext, sink: RecordingSink) -> None:
    """Each sink is served from a thread of its own, and a close waits for those that can end."""
    hanging = RecordingSink()
    hanging.gate.clear()
    dispatcher = SinkDispatcher([hanging, sink], context)
    dispatcher.log({}, 1)
    assert not dispatcher.close(0.5)
    assert sink.calls == ["open m", (1, {}), "close"]
    hanging.gate.set()
    assert dispatcher.close(TIMEOUT_S)
    assert hanging.steps == [1]


def test_a_sink_that_ends_the_program_ends_nothing(
    context: SinkContext, caplog: pytest.LogCaptureFixture
) -> None:
    """SystemExit out of a sink is a failure like any other: told, and survived."""

    class Exiting(RecordingSink):
        def log(self, metrics: Mapping[str, float], step: int) -> None:
            super().log(metrics, step)
            if step == 1:
                raise SystemExit("quota used up")

    sink = Exiting()
    dispatcher = SinkDispatcher([sink], context, retry_after_s=0.0)
    dispatcher.log({}, 1)
    dispatcher.log({}, 2)
    assert dispatcher.close(TIMEOUT_S)
    assert sink.steps == [1, 2]
    assert ["quota used up" in record.message for record in caplog.records] == [True]


def test_one_sink_can_be_opened_alone(context: SinkContext, sink: RecordingSink) -> None:
    """An early open of one sink leaves the others closed, and does not wait for them."""
    other = RecordingSink()
    dispatcher = SinkDispatcher([other, sink], context)
    assert dispatcher.open(TIMEOUT_S, only=sink)
    assert (sink.calls, other.calls) == (["open m"], [])
    assert dispatcher.close(TIMEOUT_S)


@pytest.mark.parametrize("failing_opens", [0, 1])
def test_an_event_loop_ends_after_the_sinks_have_opened(
    context: SinkContext, failing_opens: int
) -> None:
    """A loop that was asked to stay ends when the sinks are open or have failed, and goes on meanwhile."""
    gate = threading.Event()

    class Opening(RecordingSink):
        def open(self, context: SinkContext) -> None:
            gate.wait(TIMEOUT_S)
            time.sleep(0.2)  # far longer than the loop needs to end
            super().open(context)

    sink = Opening(failing_opens=failing_opens)
    dispatcher = SinkDispatcher([sink], context)

    async def training() -> None:
        await asyncio.to_thread(dispatcher.log, {}, 1)
        for _ in range(3):
            dispatcher.hold_loop()
        await asyncio.sleep(0)
        assert sink.calls == []
        asyncio.get_running_loop().call_soon(gate.set)

    asyncio.run(training())
    assert sink.calls[0] == "open m"
    assert dispatcher.close(TIMEOUT_S)


def test_an_event_loop_does_not_wait_for_a_sink_that_hangs(
    context: SinkContext, sink: RecordingSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop stays for a bounded time, once, and not at all for sinks that are open or have nothing to do."""
    monkeypatch.setattr(sink_dispatcher, "_OPEN_TIMEOUT_S", 0.2)
    gate = threading.Event()

    class Hanging(RecordingSink):
        def open(self, context: SinkContext) -> None:
            gate.wait()

    dispatcher = SinkDispatcher([Hanging(), sink], context)

    async def training() -> int:
        dispatcher.hold_loop()
        await asyncio.to_thread(dispatcher.log, {}, 1)
        dispatcher.hold_loop()
        return len(asyncio.all_tasks())

    assert asyncio.run(training()) == 1
    assert not any(lane.is_opening for lane in dispatcher._lanes)
    gate.set()
    assert dispatcher.close(TIMEOUT_S)


def test_a_thread_that_was_killed_is_replaced(
    context: SinkContext, sink: RecordingSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows after the death of a sink's thread are delivered by a new one."""
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    dispatcher = SinkDispatcher([sink], context)
    dispatcher.log({}, 1)
    assert dispatcher.flush(TIMEOUT_S)
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "art-sink"]
    assert thread.ident is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit)
    )
    dispatcher.log({}, 2)  # wakes the thread, which dies of it
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()
    dispatcher.log({}, 3)
    assert dispatcher.close(TIMEOUT_S)
    assert sink.steps[0] == 1
    assert sink.steps[-1] == 3


def test_no_thread_to_be_had_is_told_and_raises_nothing(
    context: SinkContext, sink: RecordingSink, caplog: pytest.LogCaptureFixture
) -> None:
    """Where no thread can be started, as at the limit or while Python ends, a row is left out with a warning."""

    class Unstartable(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    dispatcher = SinkDispatcher([sink], context)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading, "Thread", Unstartable)
        dispatcher.log({}, 1)
        dispatcher.log({}, 2)
        assert dispatcher.close(TIMEOUT_S)
    assert len(caplog.records) == 1
    assert "gets no thread" in caplog.text
    dispatcher.log({}, 3)
    assert dispatcher.close(TIMEOUT_S)
    assert sink.steps == [3]
