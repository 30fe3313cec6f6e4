from __future__ import annotations

import dataclasses
import io
import json
import queue
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from art_local import checkpoint_files as files
from art_local.child import Channel
from art_local.config import WorkerSettings
from art_local.distributed import World
from art_local.worker import Worker
from tests.art_local.commands import adapter, batch, create, train

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.local


class WorkerProcess:
    """The parent's side of a worker, as thin as can be."""

    def __init__(self, settings: WorkerSettings) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "art_local.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._events: queue.Queue[dict[str, Any]] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.send(dataclasses.asdict(settings))

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._events.put(json.loads(line))

    def send(self, message: dict[str, Any]) -> None:
        """Send one line."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def event(self) -> dict[str, Any]:
        """The next event."""
        return self._events.get(timeout=100)

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send a command and return its last event."""
        self.send(message)
        while (event := self.event())["event"] == "gradient_step":
            pass
        return event

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@contextmanager
def running(base_model: Path, **settings: Any) -> Iterator[WorkerProcess]:
    """A worker that is ready."""
    worker = WorkerProcess(WorkerSettings(str(base_model), threads=1, **settings))
    try:
        assert worker.event() == {"event": "ready"}
        yield worker
    finally:
        worker.close()


@pytest.fixture(scope="module")
def worker(tiny_model_dir: Path) -> Iterator[WorkerProcess]:
    """One warm worker for the module, as one warm worker serves many train calls."""
    with running(tiny_model_dir, micro_batch_tokens=1) as process:  # many chances to cancel
        yield process


def test_a_train_makes_the_next_checkpoint(worker: WorkerProcess, tmp_path: Path) -> None:
    """One event for the gradient step, then the end, and the weights have moved."""
    assert worker.ask(create(tmp_path)) == {"event": "created", "step": 0}
    worker.send(train(tmp_path, 0))
    event = worker.event()
    assert event["event"] == "gradient_step"
    assert event["metrics"]["num_trained_tokens"] > 0
    assert {"load_s", "save_s", "forward_backward_s"} <= event["metrics"].keys()
    assert worker.event() == {"event": "trained", "step": 1}
    assert files.list_steps(tmp_path) == [0, 1]
    assert adapter(tmp_path, 0) != adapter(tmp_path, 1)


def test_a_resumed_worker_continues_as_an_uninterrupted_one(
    worker: WorkerProcess, tiny_model_dir: Path, tmp_path: Path
) -> None:
    """The same requests give the same weights to the bit, whether one process took them or two."""
    one, two = tmp_path / "one", tmp_path / "two"
    for checkpoints in (one, two):
        worker.ask(create(checkpoints))
        for step in (0, 1):
            assert worker.ask(train(checkpoints, step))["event"] == "trained"
    assert worker.ask(train(one, 2))["event"] == "trained"  # reloads: its memory is that of `two`
    with running(tiny_model_dir, micro_batch_tokens=1) as resumed:
        assert resumed.ask(train(two, 2))["event"] == "trained"
        assert resumed.ask(train(two, 3))["event"] == "trained"
    assert worker.ask(train(one, 3))["event"] == "trained"
    for step in range(5):
        assert adapter(one, step) == adapter(two, step), step


def test_a_step_is_trained_from_the_named_checkpoint_not_from_memory(
    worker: WorkerProcess, tmp_path: Path
) -> None:
    """Training step 1 again starts from step 0 and gives the same checkpoint (T8)."""
    worker.ask(create(tmp_path))
    worker.ask(train(tmp_path, 0))
    first = adapter(tmp_path, 1)
    worker.ask(train(tmp_path, 0))
    assert adapter(tmp_path, 1) == first


def test_a_checkpoint_that_was_replaced_on_disk_is_read_again(
    worker: WorkerProcess, tmp_path: Path
) -> None:
    """Memory counts only while the file that it was written to is still the one on disk."""
    worker.ask(create(tmp_path))
    worker.ask(train(tmp_path, 0))
    files.copy_step(
        files.step_dir(tmp_path, 0), files.step_dir(tmp_path, 1), tmp_path / ".art_local"
    )
    worker.ask(train(tmp_path, 1, batch(0)))
    files.copy_step(
        files.step_dir(tmp_path, 2), files.step_dir(tmp_path, 9), tmp_path / ".art_local"
    )
    worker.ask(train(tmp_path, 0))
    assert adapter(tmp_path, 1) == adapter(tmp_path, 9)


def test_a_batch_without_a_signal_leaves_the_weights_unchanged(
    worker: WorkerProcess, tmp_path: Path
) -> None:
    """The step is committed with the same weights."""
    worker.ask(create(tmp_path))
    worker.ask(train(tmp_path, 0))
    indifferent = batch(5)
    for sequence in indifferent:
        sequence.advantage = 0.0
    assert worker.ask(train(tmp_path, 1, indifferent))["event"] == "trained"
    assert adapter(tmp_path, 2) == adapter(tmp_path, 1)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("no source", "has no adapter_model"),
        ("no request", "request.json"),
        ("foreign tokens", "token id 100000"),
    ],
)
def test_a_failure_is_answered_and_the_worker_stays_usable(
    worker: WorkerProcess, tmp_path: Path, damage: str, message: str
) -> None:
    """The event has type, message and traceback; no checkpoint appears; the next train works (T5)."""
    worker.ask(create(tmp_path))
    worker.ask(train(tmp_path, 0))
    sequences = batch(1)
    if damage == "foreign tokens":
        sequences[0].token_ids[0] = 100_000
    command = train(tmp_path, 7 if damage == "no source" else 1, sequences)
    if damage == "no request":
        command["request_dir"] = str(tmp_path / "nowhere")
    event = worker.ask(command)
    assert event["event"] == "failed"
    assert message in event["message"]
    assert event["error"] in event["traceback"]
    assert files.list_steps(tmp_path) == [0, 1]
    assert worker.ask(train(tmp_path, 1))["event"] == "trained"


def test_after_a_failure_the_next_train_starts_clean_from_its_checkpoint(
    worker: WorkerProcess, tmp_path: Path
) -> None:
    """A step that was taken in memory but not committed leaves no trace (T5)."""
    worker.ask(create(tmp_path))
    command = train(tmp_path, 0)
    request_file = type(tmp_path)(command["request_dir"]) / "request.json"
    request = json.loads(request_file.read_text())
    (tmp_path / "file").touch()
    request_file.write_text(json.dumps({**request, "to_checkpoint": str(tmp_path / "file" / "1")}))
    assert worker.ask(command)["event"] == "failed"
    request_file.write_text(json.dumps(request))
    assert worker.ask(command)["event"] == "trained"
    got = adapter(tmp_path, 1)
    worker.ask(train(tmp_path, 0))
    assert adapter(tmp_path, 1) == got


def test_c097_a_cancelled_train_leaves_no_checkpoint(worker: WorkerProcess, tmp_path: Path) -> None:
    """It ends between micro-batches, and the next train starts clean."""
    long = [s for seed in range(300) for s in batch(seed)]
    worker.ask(create(tmp_path))
    worker.send(train(tmp_path, 0, long))
    worker.send({"command": "cancel"})
    assert worker.event() == {"event": "cancelled"}
    assert files.list_steps(tmp_path) == [0]
    assert worker.ask(train(tmp_path, 0))["event"] == "trained"
    after_cancel = adapter(tmp_path, 1)
    assert worker.ask(train(tmp_path, 0))["event"] == "trained"
    assert adapter(tmp_path, 1) == after_cancel


class CancelAtCheck(queue.Queue[dict[str, Any]]):
    """Commands in which a cancel shows up the nth time that they are looked at."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.checks_left = n

    def get_nowait(self) -> dict[str, Any]:
        """Take the next command."""
        self.checks_left -= 1
        if self.checks_left == 0:
            return {"command": "cancel"}
        raise queue.Empty


def test_a_cancel_counts_until_the_very_commit(tiny_model_dir: Path, tmp_path: Path) -> None:
    """Before the gradient, after it, and when the files are written: nothing is left, and the memory is not used."""
    out = io.StringIO()
    channel = Channel({}, queue.Queue(), out)
    worker = Worker(channel, WorkerSettings(str(tiny_model_dir), threads=1), World())
    worker.answer(create(tmp_path))
    worker.answer(train(tmp_path, 0))
    expected = adapter(tmp_path, 1)
    files.delete_steps(tmp_path, [0], tmp_path / ".art_local")
    for n in (1, 2, 3):
        worker.answer(create(tmp_path))  # the memory is step 0 again
        channel.commands = CancelAtCheck(n)
        worker.answer(train(tmp_path, 0))
        assert json.loads(out.getvalue().splitlines()[-1]) == {"event": "cancelled"}
        assert files.list_steps(tmp_path) == [0]
        channel.commands = queue.Queue()
        worker.answer(train(tmp_path, 0))
        assert adapter(tmp_path, 1) == expected
        files.delete_steps(tmp_path, [0], tmp_path / ".art_local")


def test_a_policy_that_leaves_the_gpu_between_commands_trains_as_one_that_stays(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    """The weights are the same to the bit, also those of a step that goes on from what is in memory."""
    for leaves in (False, True):
        settings = WorkerSettings(str(tiny_model_dir), threads=1, offload_when_idle=leaves)
        worker = Worker(Channel({}, queue.Queue(), io.StringIO()), settings, World())
        worker.answer(create(tmp_path / str(leaves)))
        for step in (0, 1):
            worker.answer(train(tmp_path / str(leaves), step))
    for step in (0, 1, 2):
        assert adapter(tmp_path / "True", step) == adapter(tmp_path / "False", step)


def test_a_cancel_that_comes_too_late_changes_nothing(
    worker: WorkerProcess, tmp_path: Path
) -> None:
    """An idle worker takes no notice, and the next command is not cancelled."""
    worker.ask(create(tmp_path))
    worker.send({"command": "cancel"})
    assert worker.ask(train(tmp_path, 0)) == {"event": "trained", "step": 1}


def test_the_worker_ignores_an_interrupt(worker: WorkerProcess, tmp_path: Path) -> None:
    """Ctrl-C reaches the whole process group; the parent decides."""
    worker.process.send_signal(signal.SIGINT)
    assert worker.ask(create(tmp_path)) == {"event": "created", "step": 0}


def test_an_unknown_command_is_answered(worker: WorkerProcess) -> None:
    """Every command has an answer."""
    event = worker.ask({"command": "sing"})
    assert event["event"] == "failed"
    assert "'sing'" in event["message"]


def test_a_base_model_that_does_not_exist_is_reported(tmp_path: Path) -> None:
    """The event names the path, and the process ends."""
    worker = WorkerProcess(WorkerSettings(str(tmp_path / "nothing")))
    try:
        event = worker.event()
        assert event["event"] == "failed"
        assert event["error"] == "ConfigurationError"
        assert str(tmp_path / "nothing") in event["message"]
        assert worker.process.wait(timeout=100) == 1
    finally:
        worker.close()


def test_the_worker_ends_with_its_stdin(tiny_model_dir: Path) -> None:
    """When the parent is gone, so is the worker."""
    with running(tiny_model_dir) as worker:
        assert worker.process.stdin is not None
        worker.process.stdin.close()
        assert worker.process.wait(timeout=100) == 0
