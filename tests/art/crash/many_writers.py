"""One of several processes at work on one model: it says "ready", waits for a line on stdin, and does its part.

python -m tests.art.crash.many_writers {writer | trainer | poller} {base path} {number of this process}
"""

from __future__ import annotations

import asyncio
import select
import sys
from typing import TYPE_CHECKING, Any

import art
from art.books.trajectory_file import read_logs
from tests.art.crash.file_backend import FileBackend
from tests.art.crash.work import Op, groups_of

if TYPE_CHECKING:
    from pathlib import Path

LOGS_OF_A_WRITER = 12
STEPS_LOGGED = 3
TRAINS = 6
_NUMBERS_OF_A_PROCESS = 1000

Agent = art.TrainableModel[Any, Any]


def logs_of(process: int) -> list[Op]:
    """What a writer logs: batches of several sizes, at few steps, so that all write to the same files."""
    first = process * _NUMBERS_OF_A_PROCESS
    return [
        Op(first + i, "log", step=i % STEPS_LOGGED, size=(1, 8, 60)[(i + process) % 3])
        for i in range(LOGS_OF_A_WRITER)
    ]


def states_of(op: Op) -> list[str]:
    """What a writer keeps in the state after a log: one key a merge, so that a lost merge shows."""
    return [f"{op.number}/{i}" for i in range(4)]


def trains_of(process: int) -> list[Op]:
    """What a trainer trains on."""
    first = process * _NUMBERS_OF_A_PROCESS
    return [Op(first + i, "train", step=i, size=20) for i in range(TRAINS)]


async def write(model: Agent, process: int) -> None:
    for op in logs_of(process):
        await model.log(groups_of(op), step=op.step)
        for key in states_of(op):
            model.merge_state({"told": {key: True}})


async def train(model: Agent, process: int) -> None:
    backend = FileBackend()
    await model.register(backend)
    for op in trains_of(process):
        backend.op_number = float(op.number)
        result = await model.train(groups_of(op))
        assert result.step == op.step + 1


async def poll(model: Agent) -> None:
    """Read everything again and again until told to stop; what was there once must stay."""
    num_rows = num_logs = num_rounds = 0
    while not select.select([sys.stdin], [], [], 0.0)[0]:
        frame = model.history()
        assert len(frame) >= num_rows, f"{len(frame)} rows after {num_rows}"
        assert frame["step"].null_count() == 0
        logs = sum(len(read_logs(path)) for path in files_of(model))
        assert logs >= num_logs, f"{logs} logs after {num_logs}"
        model.read_state()
        num_rows, num_logs, num_rounds = len(frame), logs, num_rounds + 1
    sys.stdout.write(f"{num_rounds}\n")


def files_of(model: Agent) -> list[Path]:
    return sorted(art.model_dir(model).glob("trajectories/*/*.parquet"))


async def main(role: str, base_path: str, process: int) -> None:
    model: Agent = art.TrainableModel(
        name="agent", project="tests", base_model="none", base_path=base_path, report_metrics=[]
    )
    groups_of(Op(0, "log", 0, 1))  # imports what is imported late, so that all start at once
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    if role == "writer":
        await write(model, process)
    elif role == "trainer":
        await train(model, process)
    else:
        await poll(model)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
