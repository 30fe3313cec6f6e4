from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

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
        if thread.name == "art-sinks":
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
    assert dispatcher.close(TIMEOUT_S)
    assert sink.calls == ["open m"]


def test_a_sink_that_keeps_failing_is_given_up(
    context: SinkContext, caplog: pytest.LogCaptureFixture
) -> None:
    """After five failures in a row a sink is left alone, with one warning in all."""
    sink = RecordingSink(failing_opens=99)
    dispatcher = SinkDispatcher([sink], context, retry_after_s=0.0)
    for step in range(10):
        dispatcher.log({}, step)
    assert dispatcher.close(TIMEOUT_S)
    assert sink.calls == ["open m"] * 5
    assert len(caplog.records) == 1


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
