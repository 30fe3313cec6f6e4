"""Several processes at work on one model directory at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import art
from art.books.trajectory_file import read_logs
from tests.art.crash.many_writers import logs_of, states_of, trains_of
from tests.art.crash.work import Op, groups_of
from tests.art.factories import model

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.crash

ROOT = Path(__file__).resolve().parents[3]
WRITERS = range(4)
TRAINER, POLLER = 4, 5
ROUNDS = 10 if os.environ.get("ART_CAMPAIGN") == "full" else 1


class Worker:
    """One process of `many_writers.py`."""

    def __init__(self, role: str, base_path: Path, number: int) -> None:
        command = [sys.executable, "-m", "tests.art.crash.many_writers", role, base_path]
        self.process = subprocess.Popen(
            [*map(str, command), str(number)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self._stdout = self.process.stdout

    def wait_until_ready(self) -> None:
        assert self._stdout.readline() == "ready\n"

    def say_go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def end(self) -> str:
        """End its input, wait for it, and return what it printed."""
        output, errors = self.process.communicate()
        assert self.process.returncode == 0, errors
        return output


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[list[Worker]]:
    roles = [*["writer"] * len(WRITERS), "trainer", "poller"]
    started = [Worker(role, tmp_path, number) for number, role in enumerate(roles)]
    yield started
    for worker in started:
        worker.process.kill()
        worker.process.communicate()


def lines_of(path: Path) -> list[dict[str, Any]]:
    """All lines of a file, none of them torn."""
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def check_rows(root: Path, logged: list[Op], trained: list[Op]) -> None:
    """Each log has one row, each train its two, in order."""
    rows = lines_of(root / "history.jsonl")
    found = Counter((row["val/op"], row["step"]) for row in rows if "val/op" in row)
    assert found == Counter((op.number, op.step) for op in logged)
    found_trains = [(row["train/op"], row["step"]) for row in rows if "train/op" in row]
    assert found_trains == [(op.number, op.step + late) for op in trained for late in (0, 1)]
    assert len(rows) == len(logged) + 2 * len(trained)


def check_files(root: Path, ops: list[Op]) -> None:
    """Each batch is in its file, once and unchanged."""
    left = {op.number: op for op in ops}
    for path in root.glob("trajectories/*/*"):
        logs = read_logs(path)
        assert list(logs) == list(range(len(logs)))
        for groups in logs.values():
            op = left.pop(groups[0].metadata["op"])
            assert path == root / "trajectories" / op.split / f"{op.step:04d}.parquet"
            assert art.same_groups(groups, groups_of(op))
    assert left == {}


@pytest.mark.parametrize("_round", range(ROUNDS))
def test_c050_processes_that_log_train_and_read_at_once_lose_nothing(
    tmp_path: Path, workers: list[Worker], _round: int
) -> None:
    """Every row and batch of four writers and a trainer is there once, and a reader never meets half a file."""
    for worker in workers:
        worker.wait_until_ready()
    for worker in workers:
        worker.say_go()
    for worker in workers[:POLLER]:
        worker.end()
    assert int(workers[POLLER].end()) > 0

    agent = model(tmp_path)
    root = art.model_dir(agent)
    logged, trained = [op for number in WRITERS for op in logs_of(number)], trains_of(TRAINER)
    check_rows(root, logged, trained)
    check_files(root, [*logged, *trained])
    assert [line["step"] for line in lines_of(root / "steps.jsonl")] == [
        op.step + 1 for op in trained
    ]
    assert agent.read_state() == {"told": {key: True for op in logged for key in states_of(op)}}
