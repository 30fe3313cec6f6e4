"""Cancellation, the end of a program, and event loops that come and go."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import gc
import random
import time
import warnings
import weakref
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

import art
from art.testing import InMemoryBackend
from tests.art.chat_endpoint import completion, serving
from tests.art.children import run
from tests.art.factories import group, model, trajectory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    HistoryRows = Callable[[art.Model[Any, Any]], list[dict[str, Any]]]

pytestmark = pytest.mark.process


@pytest.fixture
def endpoint() -> Iterator[str]:
    """The address of an inference server that answers everything."""
    with serving(lambda model: (200, completion(model, "a"))) as address:
        yield address


async def test_c097_a_train_that_times_out_while_it_writes_is_all_or_nothing(
    tmp_path: Path, history_rows: HistoryRows
) -> None:
    """Wherever a timeout hits, nothing is written later, the step is the backend's, and the next train works."""
    agent, backend = model(tmp_path), InMemoryBackend.supporting("step")
    checkpoints = backend.checkpoints.setdefault(("tests", "agent"), {0})
    await agent.register(backend)
    batch = [group(*map(float, range(50)))]

    def files() -> list[tuple[Path, int]]:
        return sorted((p, p.stat().st_mtime_ns) for p in tmp_path.rglob("*") if p.is_file())

    duration_s = 0.1
    for share in random.Random(1).choices(range(100), k=15):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(agent.train(batch), duration_s * share / 100)
        left = files()
        await asyncio.sleep(0.01)
        assert files() == left
        before = max(checkpoints)
        started_s = time.perf_counter()
        assert (await agent.train(batch)).step == before + 1 == max(checkpoints)
        duration_s = time.perf_counter() - started_s

    logged = [row["step"] for row in history_rows(agent) if "train/reward" in row]
    for step in set(logged):
        path = art.model_dir(agent) / "trajectories" / "train" / f"{step:04d}.parquet"
        log_indices = pq.read_table(path)["log_index"].to_pylist()
        assert len(log_indices) == 50 * logged.count(step)


END_OF_A_RUN = """
import asyncio, logging, sys
import art
from art.testing import InMemoryBackend

class Sink:
    def open(self, context): pass
    def log(self, metrics, step): print("row", step, flush=True)
    def close(self): print("closed", flush=True)

async def main():
    backend = InMemoryBackend.supporting("step", "listing", "inference", "inference_name", "close")
    model = art.TrainableModel(
        name="m", project="p", base_model="b", base_path=sys.argv[1], report_metrics=[Sink()]
    )
    await model.register(backend)
    model.openai_client()
    await model.train([art.TrajectoryGroup([art.Trajectory(reward=r) for r in (0.0, 1.0)])])
    for _ in range(int(sys.argv[2])):
        await model.close()
        await backend.close()

asyncio.run(main())
"""


@pytest.mark.parametrize("closes", [0, 1, 2])
def test_c100_a_run_ends_with_status_0_and_a_silent_stderr(tmp_path: Path, closes: int) -> None:
    """However often it is closed, every row is delivered once and no task or socket is reported as lost."""
    assert run(END_OF_A_RUN, tmp_path, str(closes)) == "row 0\nrow 1\nclosed\n"


def steps_of_three_loops(agent: art.TrainableModel[Any, Any], address: str) -> list[int]:
    """Ask, log and train in three runs of `asyncio.run`, and close nothing in between."""
    backend = InMemoryBackend.supporting("step", "inference")
    backend.endpoint = (address, "key")

    async def rollout(reward: float) -> art.Trajectory:
        messages: art.Messages = [{"role": "user", "content": "q"}]
        completion = await agent.openai_client().chat.completions.create(
            model=agent.get_inference_name(), messages=messages
        )
        return art.Trajectory(
            messages_and_choices=[*messages, completion.choices[0]], reward=reward
        )

    async def one_step() -> int:
        if not agent.inference_base_url:
            await agent.register(backend)
        groups = await art.gather_trajectory_groups(
            [art.TrajectoryGroup(rollout(reward) for reward in (0.0, 1.0))]
        )
        await agent.log(groups)
        return (await agent.train(groups)).step

    steps = [asyncio.run(one_step()) for _ in range(3)]
    asyncio.run(agent.close())
    return steps


def test_c101_rollouts_logs_and_trains_in_three_event_loops(
    tmp_path: Path, endpoint: str, history_rows: HistoryRows
) -> None:
    """One model, its client and its backend serve three runs of `asyncio.run`."""
    with warnings.catch_warnings():
        # Connections that nobody closed end with their loop, which Python tells those who ask for it.
        warnings.simplefilter("ignore", ResourceWarning)
        assert steps_of_three_loops(model(tmp_path), endpoint) == [1, 2, 3]
        gc.collect()

    rows = history_rows(model(tmp_path))
    assert [row["step"] for row in rows if "val/reward" in row] == [0, 1, 2]


NOTEBOOK = """\
import art
from art.testing import InMemoryBackend
from tests.art.factories import model, trajectory

agent = model(base_path)
await agent.register(InMemoryBackend())

async def rollout(reward):
    return trajectory(reward)
def group():
    return art.TrajectoryGroup(rollout(reward) for reward in (0.0, 1.0))

groups = await art.gather_trajectory_groups([group()])
await agent.log(groups)
result = await agent.train(groups)

async for batch in art.trajectory_group_batches([group()], batch_size=1):
    trained = await agent.train(batch)

await agent.delete_checkpoints(None)
await agent.close()
"""


async def test_c104_the_cells_of_a_notebook_run_in_its_loop(tmp_path: Path) -> None:
    """A whole job works with a bare `await` in each cell, as a notebook compiles them."""
    names: dict[str, Any] = {"base_path": tmp_path}
    for cell in NOTEBOOK.split("\n\n"):
        code = compile(cell, "<cell>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        waiting = eval(code, names)
        if waiting is not None:
            await waiting

    assert (names["result"].step, names["trained"].step) == (1, 2)


async def test_two_logs_and_a_train_at_once_lose_nothing(
    tmp_path: Path, history_rows: HistoryRows
) -> None:
    """Calls that overlap in one loop each leave their row and their rollouts."""
    agent = model(tmp_path)
    await agent.register(InMemoryBackend())

    await asyncio.gather(
        *(agent.log([trajectory(1.0)], step=0) for _ in range(10)), agent.train([group(0.0, 1.0)])
    )

    assert len(history_rows(agent)) == 12
    table = pq.read_table(art.model_dir(agent) / "trajectories" / "val" / "0000.parquet")
    assert sorted(table["log_index"].to_pylist()) == list(range(10))


def test_clients_of_loops_that_ended_are_let_go(endpoint: str) -> None:
    """A model that outlives its event loops keeps neither them nor their sockets."""
    agent = art.Model(name="m", project="p", inference_api_key="k", inference_base_url=endpoint)
    loops: list[weakref.ref[asyncio.AbstractEventLoop]] = []

    async def ask() -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        question: Any = {"role": "user", "content": "q"}
        await agent.openai_client().chat.completions.create(model="m", messages=[question])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        for _ in range(4):
            asyncio.run(ask())
        gc.collect()
        assert sum(reference() is not None for reference in loops) <= 1
        del agent._clients  # its last socket is closed here, where that may warn
        gc.collect()
