from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from art.errors import ModelBusy
from art.testing import InMemoryBackend
from tests.art.factories import group, model

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

OTHER_PROCESS = """
import asyncio, sys
import art
from art.testing import InMemoryBackend

class Slow(InMemoryBackend):
    async def _train_model(self, *args, **kwargs):
        print("training", flush=True)
        await asyncio.sleep(60)
        yield {"loss": 1.0}

async def main():
    model = art.TrainableModel(
        name="agent", project="tests", base_model="none", base_path=sys.argv[1], report_metrics=[]
    )
    await model.register(Slow())
    group = art.TrajectoryGroup([art.Trajectory(reward=r) for r in (0.0, 1.0)])
    await model.train([group])

asyncio.run(main())
"""


async def test_a_second_process_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    """Two processes never train one model directory at once; after the first dies the second goes on."""
    agent = model(tmp_path)
    await agent.register(InMemoryBackend())
    with subprocess.Popen(
        [sys.executable, "-c", OTHER_PROCESS, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "training\n"

        with pytest.raises(ModelBusy, match=str(other.pid)):
            await agent.train([group(0.0, 1.0)])
        with pytest.raises(ModelBusy, match=str(other.pid)):
            await agent.delete_checkpoints(None)
        await agent.log([group(1.0)])  # logging needs no turn

        other.kill()
        other.wait()

    assert (await agent.train([group(0.0, 1.0)])).step == 1
