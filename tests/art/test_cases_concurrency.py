"""Several programs at once on one machine."""

from __future__ import annotations

import json
import signal
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

import art
from tests.art.children import run, start
from tests.art.factories import model

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

# Waits after its first line of output, so that two of them work at the same time.
SCRIPT = """
import asyncio, sys
import art
from art.testing import InMemoryBackend

async def main():
    base_path, name, reward = sys.argv[1], sys.argv[2], float(sys.argv[3])
    model = art.TrainableModel(
        name=name, project="tests", base_model="none", base_path=base_path, report_metrics=[]
    )
    backend = InMemoryBackend()
    await model.register(backend)
    print("ready", flush=True)
    sys.stdin.readline()
    busy = 0
    for step in range(6):
        await model.log([art.TrajectoryGroup([art.Trajectory(reward=reward)] * 2)], step=step)
        model.merge_state({f"seen by {reward}": step})
        try:
            trajectories = [art.Trajectory(reward=reward), art.Trajectory(reward=reward + 1.0)]
            await model.train([art.TrajectoryGroup(trajectories)])
        except art.errors.ModelBusy:
            busy += 1
    await model.close()
    print(busy)

asyncio.run(main())
"""


def run_together(base_path: Path, *names: str) -> list[int]:
    """Run the script for each name at once; return how often each found its model busy."""
    children = [start(SCRIPT, base_path, name, str(float(i))) for i, name in enumerate(names)]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    outputs = [child.communicate() for child in children]
    assert [child.returncode for child in children] == [0] * len(children), outputs
    return [int(output) for output, _ in outputs]


def rows_of(agent: art.Model[Any, Any]) -> list[dict[str, Any]]:
    text = (art.model_dir(agent) / "history.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_c105_two_scripts_with_models_of_their_own_are_isolated(tmp_path: Path) -> None:
    """Beside another script in the same project, the books are those of a script that ran alone."""
    assert run_together(tmp_path / "both", "first", "second") == [0, 0]
    with start(SCRIPT, tmp_path / "alone", "second", "1.0") as alone:
        alone.communicate("go\n")

    def comparable(base_path: Path, name: str) -> tuple[list[dict[str, Any]], list[str]]:
        agent = model(base_path, name)
        rows = [{**row, "recorded_at": None} for row in rows_of(agent)]
        root = art.model_dir(agent)
        return rows, sorted(str(path.relative_to(root)) for path in root.rglob("*"))

    assert comparable(tmp_path / "both", "second") == comparable(tmp_path / "alone", "second")
    rewards = [
        row["val/reward"]
        for row in rows_of(model(tmp_path / "both", "first"))
        if "val/reward" in row
    ]
    assert rewards == [0.0] * 6


def test_c105_two_scripts_with_one_model_share_its_books(tmp_path: Path) -> None:
    """Every log of both is whole, a train is refused while the other trains, and no step is numbered twice."""
    busy = run_together(tmp_path, "agent", "agent")

    agent = model(tmp_path)
    rows = rows_of(agent)
    assert Counter(row["val/reward"] for row in rows if "val/reward" in row) == {0.0: 6, 1.0: 6}
    for step in range(6):
        table = pq.read_table(art.model_dir(agent) / "trajectories" / "val" / f"{step:04d}.parquet")
        assert Counter(table["reward"].to_pylist()) == {0.0: 2, 1.0: 2}
        assert Counter(table["log_index"].to_pylist()) == {0: 2, 1: 2}
    assert agent.read_state() == {"seen by 0.0": 5, "seen by 1.0": 5}
    ledger = (art.model_dir(agent) / "steps.jsonl").read_text().splitlines()
    trained = [json.loads(line)["step"] for line in ledger]
    assert trained == list(range(1, 13 - sum(busy)))
    assert [row["step"] for row in rows if "train/loss" in row] == trained


UNWATCHED = """
import asyncio, sys
import art
from art.testing import InMemoryBackend

async def main():
    model = art.TrainableModel(
        name="agent", project="tests", base_model="none", base_path=sys.argv[1], report_metrics=[]
    )
    await model.register(InMemoryBackend.supporting("step"))
    print(await model.get_step(), flush=True)
    while True:
        await model.train([art.TrajectoryGroup([art.Trajectory(reward=r) for r in (0.0, 1.0)])])

asyncio.run(main())
"""


@pytest.mark.crash
def test_c105_the_death_of_one_script_leaves_the_other_at_work(tmp_path: Path) -> None:
    """A script that is killed in the middle of its trains takes nothing of its neighbour along."""
    with start(UNWATCHED, tmp_path) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == "0\n"
        assert run_together(tmp_path, "other") == [0]
        killed.send_signal(signal.SIGKILL)

    assert [row["step"] for row in rows_of(model(tmp_path, "other")) if "train/loss" in row] == [
        *range(1, 7)
    ]


SECOND_SESSION = """
import sys, asyncio
import art
from art.testing import InMemoryBackend

async def main():
    model = art.TrainableModel(
        name="agent", project="tests", base_model="none", base_path=sys.argv[1], report_metrics=[]
    )
    await model.register(InMemoryBackend())
    result = await model.train([art.TrajectoryGroup([art.Trajectory(reward=r) for r in (0.0, 1.0)])])
    print(result.step)

asyncio.run(main())
"""


def test_one_script_after_another_goes_on(tmp_path: Path) -> None:
    """Each new process takes up the step where the last one ended."""
    assert [run(SECOND_SESSION, tmp_path) for _ in range(3)] == ["1\n", "2\n", "3\n"]
