from __future__ import annotations

import asyncio
import dataclasses
import io
import json
import os
import queue
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from art.errors import ConfigurationError, TrainingError
from art_local import checkpoint_files as files
from art_local.child import Channel
from art_local.config import OptimizerSettings, WorkerSettings
from art_local.distributed import World
from art_local.service_config import ServiceConfig
from art_local.training_worker import TrainingWorker
from art_local.worker import Worker
from tests.art_local.commands import batch, create, train
from tests.art_local.processes import children_of, wait_until_gone

if TYPE_CHECKING:
    from collections.abc import Iterator

    from art.adapter_kit.sequences import TrainingSequence

pytestmark = pytest.mark.local

_STEPS = (0, 1)
_SETTINGS: dict[str, Any] = {
    "threads": 1,
    "micro_batch_tokens": 1,  # a row of its own for each sequence: 7 rows for 2 processes
    # AdamW divides a gradient by its own size, also one that is all rounding errors. Above this size it is real.
    "optimizer": OptimizerSettings(epsilon=1e-3),
}
_KINDS = pytest.mark.parametrize("kind", ["whole", "in pieces"])


def uneven(step: int) -> list[TrainingSequence]:
    """A batch that two processes cannot share evenly."""
    return batch(step, count=7)


def endless() -> list[TrainingSequence]:
    """A batch that takes long enough for something to happen meanwhile."""
    return [s for seed in range(600) for s in batch(seed)]


@dataclasses.dataclass
class Run:
    """Checkpoints, and the metrics of the steps between them."""

    checkpoints: Path
    metrics: list[dict[str, float]]

    def weights(self, step: int) -> Any:
        """All weights of a step, in one array."""
        tensors = load_file(files.step_dir(self.checkpoints, step) / files.ADAPTER_WEIGHTS)
        return np.concatenate([tensors[name].ravel() for name in sorted(tensors)])

    def update(self, step: int) -> Any:
        """What the gradient step before a step has changed."""
        return self.weights(step) - self.weights(step - 1)


@pytest.fixture(scope="module")
def single(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """What a single process makes of two train calls."""
    checkpoints, out = tmp_path_factory.mktemp("single"), io.StringIO()
    settings = WorkerSettings(str(tiny_model_dir), **_SETTINGS)
    worker = Worker(Channel({}, queue.Queue(), out), settings, World())
    worker.answer(create(checkpoints))
    for step in _STEPS:
        worker.answer(train(checkpoints, step, uneven(step)))
    events = [json.loads(line) for line in out.getvalue().splitlines()]
    return Run(checkpoints, [e["metrics"] for e in events if e["event"] == "gradient_step"])


def config(tiny_model_dir: Path, checkpoints: Path, **settings: Any) -> ServiceConfig:
    """Two processes."""
    worker = WorkerSettings(str(tiny_model_dir), num_processes=2, **_SETTINGS, **settings)
    return ServiceConfig("m", str(tiny_model_dir), checkpoints, worker)


@pytest.fixture(scope="module")
def workers(
    tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, TrainingWorker]]:
    """Two processes with the whole base model each, and two with half of it; each pair comes up when used."""
    root = tmp_path_factory.mktemp("several")
    made = {
        "whole": TrainingWorker(config(tiny_model_dir, root / "whole")),
        # The output layer as well is then called in parts.
        "in pieces": TrainingWorker(
            config(tiny_model_dir, root / "pieces", shard_base=True, logit_bytes=4000)
        ),
    }
    try:
        yield made
    finally:
        for worker in made.values():
            worker.child.kill()


def run(worker: TrainingWorker, command: dict[str, Any]) -> list[dict[str, float]]:
    """Carry out a train command and return its metrics."""

    async def collect() -> list[dict[str, float]]:
        return [metrics async for metrics in worker.train(Path(command["request_dir"]))]

    return asyncio.run(collect())


def copy_of(single: Run, tmp_path: Path) -> Path:
    """Checkpoints that begin with the single process's step 0."""
    files.copy_step(
        files.step_dir(single.checkpoints, 0), files.step_dir(tmp_path, 0), tmp_path / ".art_local"
    )
    return tmp_path


def assert_same_step(got: Run, want: Run, step: int) -> None:
    """The updates differ by 1e-5 of their size at most."""
    difference = np.linalg.norm(got.update(step) - want.update(step))
    assert difference <= 1e-5 * np.linalg.norm(want.update(step))


def processes_of(worker: TrainingWorker) -> tuple[int, list[int]]:
    """The launcher and, in order of their ranks, the processes."""
    assert worker.child.process is not None
    launcher = worker.child.process.pid
    return launcher, sorted(children_of(launcher), key=rank_of)


def rank_of(pid: int) -> int:
    """The number that the launcher gave a process."""
    environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next(int(line[5:]) for line in environment if line.startswith(b"RANK="))


def interrupt(worker: TrainingWorker, command: dict[str, Any], pid_at: int | None) -> None:
    """Start a train call and in its middle kill one process (-1: the launcher), or cancel where None is named."""

    async def middle() -> None:
        task = asyncio.ensure_future(collect())
        await asyncio.sleep(1.0)
        assert not task.done()
        if pid_at is None:
            task.cancel()
        else:
            launcher, ranks = processes_of(worker)
            os.kill(launcher if pid_at < 0 else ranks[pid_at], signal.SIGKILL)
        await task

    async def collect() -> None:
        async for _ in worker.train(Path(command["request_dir"])):
            pass

    asyncio.run(middle())


@_KINDS
def test_two_processes_take_the_steps_of_one(
    workers: dict[str, TrainingWorker], single: Run, kind: str
) -> None:
    """Step 0 is the same to the bit, two updates to 1e-5, and the metrics are those of the whole batch."""
    worker = workers[kind]
    checkpoints = worker._config.checkpoints
    asyncio.run(worker.create_step_0(checkpoints / ".art_local"))
    got = Run(checkpoints, [])
    for step in _STEPS:
        got.metrics += run(worker, train(checkpoints, step, uneven(step)))
    assert got.weights(0).tobytes() == single.weights(0).tobytes()
    for step in _STEPS:
        assert single.metrics[step]["num_rows"] == 7
        assert_same_step(got, single, step + 1)
        assert got.metrics[step].keys() == single.metrics[step].keys()
        for name, value in single.metrics[step].items():
            if not name.endswith("_s"):
                assert got.metrics[step][name] == pytest.approx(value, rel=1e-5, abs=1e-7), name


@_KINDS
def test_c097_a_cancelled_train_of_two_processes_leaves_no_checkpoint(
    workers: dict[str, TrainingWorker], single: Run, tmp_path: Path, kind: str
) -> None:
    """Both abandon it, in the middle, and the next train is as if nothing had been."""
    checkpoints = copy_of(single, tmp_path)
    run(workers[kind], train(checkpoints, 0, uneven(0)))  # so that both are up
    before = processes_of(workers[kind])
    files.delete_steps(checkpoints, [0], checkpoints / ".art_local")
    with pytest.raises(asyncio.CancelledError):
        interrupt(workers[kind], train(checkpoints, 0, endless()), None)
    assert files.list_steps(checkpoints) == [0]
    run(workers[kind], train(checkpoints, 0, uneven(0)))
    assert_same_step(Run(checkpoints, []), single, 1)
    assert processes_of(workers[kind]) == before


@_KINDS
@pytest.mark.parametrize("failing", ["the first", "all"])
def test_a_failure_of_one_process_or_of_all_leaves_them_usable(
    workers: dict[str, TrainingWorker], single: Run, tmp_path: Path, kind: str, failing: str
) -> None:
    """The error tells what went wrong, no checkpoint appears, and the same processes train on (T5)."""
    checkpoints = copy_of(single, tmp_path)
    run(workers[kind], train(checkpoints, 0, uneven(0)))
    before = processes_of(workers[kind])
    sequences = uneven(1)
    if failing == "all":
        sequences[-1].token_ids[0] = 100_000
    command = train(checkpoints, 1, sequences)
    if failing == "the first":  # which alone commits
        (checkpoints / "file").touch()
        request_file = Path(command["request_dir"]) / "request.json"
        request = json.loads(request_file.read_text())
        request["to_checkpoint"] = str(checkpoints / "file" / "2")
        request_file.write_text(json.dumps(request))
    with pytest.raises(TrainingError, match="100000" if failing == "all" else "FileExistsError"):
        run(workers[kind], command)
    assert files.list_steps(checkpoints) == [0, 1]
    run(workers[kind], train(checkpoints, 1, uneven(1)))
    assert_same_step(Run(checkpoints, []), single, 2)
    assert processes_of(workers[kind]) == before


def test_a_process_that_is_killed_ends_the_train_and_the_next_one_works(
    workers: dict[str, TrainingWorker], single: Run, tmp_path: Path
) -> None:
    """The error has the end of the log, which names the process; the other one and the launcher are gone."""
    checkpoints = copy_of(single, tmp_path)
    run(workers["whole"], train(checkpoints, 0, uneven(0)))
    files.delete_steps(checkpoints, [0], checkpoints / ".art_local")
    launcher, ranks = processes_of(workers["whole"])
    with pytest.raises(TrainingError, match=rf"(?s)ended with exit status 1.*pid: {ranks[1]}"):
        interrupt(workers["whole"], train(checkpoints, 0, endless()), 1)
    assert wait_until_gone([launcher, *ranks]) == []
    assert files.list_steps(checkpoints) == [0]
    run(workers["whole"], train(checkpoints, 0, uneven(0)))
    assert_same_step(Run(checkpoints, []), single, 1)


def test_a_launcher_that_is_killed_takes_the_processes_with_it(
    workers: dict[str, TrainingWorker], single: Run, tmp_path: Path
) -> None:
    """The train ends with an error, and nothing is left running."""
    checkpoints = copy_of(single, tmp_path)
    run(workers["in pieces"], train(checkpoints, 0, uneven(0)))
    launcher, ranks = processes_of(workers["in pieces"])
    with pytest.raises(TrainingError, match="killed by signal 9"):
        interrupt(workers["in pieces"], train(checkpoints, 0, endless()), -1)
    assert wait_until_gone([launcher, *ranks]) == []


_PARENT = """
import asyncio, pathlib, sys, time
from art_local.config import WorkerSettings
from art_local.service_config import ServiceConfig
from art_local.training_worker import TrainingWorker

model, checkpoints = sys.argv[1], pathlib.Path(sys.argv[2])
settings = WorkerSettings(model, num_processes=2)
worker = TrainingWorker(ServiceConfig("m", model, checkpoints, settings))
asyncio.run(worker.create_step_0(checkpoints / ".art_local"))
print(worker.child.process.pid, flush=True)
time.sleep(600)
"""


def test_nothing_is_left_of_a_parent_that_is_killed(tiny_model_dir: Path, tmp_path: Path) -> None:
    """Launcher and processes end with the process that wanted them."""
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(tiny_model_dir), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    with parent.stdout:
        launcher = int(parent.stdout.readline())
    ranks = children_of(launcher)
    assert len(ranks) == 2
    parent.kill()
    parent.wait()
    assert wait_until_gone([launcher, *ranks]) == []


@pytest.fixture(scope="module")
def answers() -> list[dict[str, Any]]:
    """What each of two processes answers to the questions of `World`."""
    script = Path(__file__).with_name("two_processes.py")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, "--local-addr=127.0.0.1", "--nproc-per-node=2", str(script)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=100)
    return sorted(map(json.loads, done.stdout.splitlines()), key=lambda answer: answer["rank"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_processes": 0}, "at least 1"),
        ({"shard_base": True}, "ask for several"),
        ({"shard_base": True, "num_processes": 2, "offload_when_idle": True}, "cannot leave them"),
    ],
)
def test_processes_that_cannot_be_are_refused(settings: dict[str, Any], message: str) -> None:
    """There is at least one, one has nothing to split, and what is split stays where it is."""
    with pytest.raises(ConfigurationError, match=message):
        WorkerSettings("m", **settings)


def test_rows_are_shared_out_and_filled_up(answers: list[dict[str, Any]]) -> None:
    """Each counts on exactly one process, and every process has as many."""
    assert [a["share 5"] for a in answers] == [
        [[0, True], [2, True], [4, True]],
        [[1, True], [3, True], [0, False]],
    ]
    assert [a["share 1"] for a in answers] == [[[7, True]], [[7, False]]]
    assert [a["share 0"] for a in answers] == [[], []]


def test_questions_have_the_same_answer_on_every_process(answers: list[dict[str, Any]]) -> None:
    """What one knows all know, and gradients add up; one that no process has is not made up."""
    for answer in answers:
        assert answer["any"] == [True, False]
        assert answer["gather"] == [{"of": 0}, {"of": 1}]
        assert answer["first"] == 0
        assert answer["await_first"] == 0
        assert answer["gradients"] == [[3.0, 6.0], [5.0, 6.0], None]


def test_whatever_a_process_asks_it_hears_of_the_failure_of_another(
    answers: list[dict[str, Any]],
) -> None:
    """Nobody waits for one that failed, all learn the same, and they can go on together."""
    first, second = answers
    assert first["one fails"] == [{"heard of": {"from": 1}}] * 4
    assert second["one fails"] == [{"told": {"from": 1}}] * 4
    assert first["first fails"] == {"told": {"from": 0}}
    assert second["first fails"] == {"heard of": {"from": 0}}
    assert first["both fail"] == second["both fail"] == {"told": {"from": 0}}
    assert not first["afterwards"]
    assert not second["afterwards"]
