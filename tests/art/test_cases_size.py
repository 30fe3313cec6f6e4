"""Rollouts and histories that are large."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from art.utils.trajectory_logging import read_trajectory_groups_parquet
from tests.art.children import run
from tests.art.factories import model

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

IMAGES = """
import asyncio, base64, random, resource, sys
import art

IMAGE = "data:image/png;base64," + base64.b64encode(random.Random(1).randbytes(2**21)).decode()

class Sink:
    def open(self, context): pass
    def log(self, metrics, step): assert len(str(metrics)) < 2000
    def close(self): pass

def rollout(reward):
    messages = []
    for turn in range(6):
        parts = [
            {"type": "text", "text": f"turn {turn}"},
            {"type": "image_url", "image_url": {"url": IMAGE}},
        ]
        messages += [{"role": "user", "content": parts}, {"role": "assistant", "content": "ok"}]
    return art.Trajectory(messages_and_choices=messages, reward=reward)

async def main():
    model = art.TrainableModel(
        name="agent", project="tests", base_model="none", base_path=sys.argv[1], report_metrics=[Sink()]
    )
    for step, rollouts in enumerate((1, 12, 30)):
        await model.log([art.TrajectoryGroup([rollout(float(i)) for i in range(rollouts)])], step=step)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / len(IMAGE))
    await model.close()

asyncio.run(main())
"""


def test_c031_repeated_images_take_bounded_memory_and_stay_out_of_the_history(
    tmp_path: Path,
) -> None:
    """Memory is bounded whatever the batch, history and sinks hear of no image, the file holds each whole."""
    _, twelve, thirty = map(float, run(IMAGES, tmp_path).split())  # peak memory, in images

    assert (
        thirty - twelve < 100
    )  # of 108 images more, which would show several times if held at once
    agent = model(tmp_path)
    root = tmp_path / "tests" / "models" / "agent"
    assert (root / "history.jsonl").stat().st_size < 2000
    [group] = read_trajectory_groups_parquet(root / "trajectories" / "val" / "0001.parquet")
    items: list[Any] = [item for trajectory in group for item in trajectory.messages_and_choices]
    urls = {item["content"][1]["image_url"]["url"] for item in items if item["role"] == "user"}
    assert len(urls) == 1
    assert len(urls.pop()) > 2 * 2**20
    assert agent.history()["val/num_trajectories"].to_list() == [1, 12, 30]


APPEND = """
import asyncio, pathlib, sys
import art

def read_so_far():
    return int(pathlib.Path("/proc/self/io").read_text().split()[1])

async def main():
    model = art.Model(name="agent", project="tests", base_path=sys.argv[1], report_metrics=[])
    await model.log(metrics={"reward": 0.0}, step=0)  # loads what it needs
    for size in (1, 100_000):
        path = art.model_dir(model) / "history.jsonl"
        path.write_text('{"val/reward": 0.5, "val/other": 1.0, "step": 1}\\n' * size)
        before = read_so_far()
        for step in range(10):
            await model.log(metrics={"reward": 0.5}, step=step)
        print(read_so_far() - before)

asyncio.run(main())
"""


def test_c054_an_append_reads_no_more_of_a_long_history(tmp_path: Path) -> None:
    """With 100,000 rows in the file, ten rows are added without reading the file again."""
    short, long = map(int, run(APPEND, tmp_path).split())  # bytes read

    assert long <= short + 100
    lines = (tmp_path / "tests" / "models" / "agent" / "history.jsonl").read_text().splitlines()
    assert len(lines) == 100_010
    rows: list[dict[str, Any]] = [json.loads(line) for line in lines[-10:]]
    assert [row["step"] for row in rows] == list(range(10))
