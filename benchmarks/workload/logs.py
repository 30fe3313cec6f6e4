"""`model.log` and reading back what it wrote."""

from __future__ import annotations

import asyncio
import gc
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import art
from art.utils.trajectory_logging import read_trajectory_groups_parquet
from benchmarks.workload.groups import make_groups
from benchmarks.workload.measure import MB, Clock, ExtraMemory, Ticker

if TYPE_CHECKING:
    from collections.abc import Sequence

_METRICS = {"loss": 0.1, "entropy": 0.5}
_WARM_UP = 64


def measure_first_log(scratch: str, trajectories: int = 64) -> dict[str, float]:
    """Time the first `log` of a process. The groups stand already, so openai is imported."""
    groups = make_groups(trajectories)

    async def first() -> float:
        with tempfile.TemporaryDirectory(dir=scratch) as directory:
            model = _model(directory)
            with Clock() as clock:
                await model.log(groups, split="train", step=1, metrics=_METRICS)
        return clock.wall_s

    return {"wall_s": asyncio.run(first())}


def measure_log(
    scratch: str,
    trajectories: int,
    tokens: int = 0,
    logs: int = 1,
    read: int = 1,
    check: int = 0,
) -> dict[str, Any]:
    """Time logs of the same groups at new steps, after a warm-up; then, if asked to, the way back.

    Args:
        scratch: Where to write.
        trajectories: How many are logged at once.
        tokens: 1 gives each Choice logprobs and token ids.
        logs: How often to log; each time, processor time and event-loop gap is told.
        read: 1 reads one file back.
        check: 1 compares what was read with what was written, outside the clock; ours alone can.
    """
    groups = make_groups(trajectories, tokens=bool(tokens))
    with tempfile.TemporaryDirectory(dir=scratch) as directory:
        result = asyncio.run(_timed_logs(_model(directory), groups, logs))
        path = _file_of_step(directory, 1)
        result["size_mb"] = path.stat().st_size / MB
        result |= _floors(path)
        del groups
        if read:
            read_trajectory_groups_parquet(_file_of_step(directory, 0))
            gc.collect()
            with Clock() as clock:
                found = read_trajectory_groups_parquet(path)
            result["read_s"] = clock.wall_s
            if check and hasattr(art, "same_groups"):
                written = make_groups(trajectories, tokens=bool(tokens))
                result["is_lossless"] = art.same_groups(found, written)
    return result


async def _timed_logs(
    model: art.Model[Any, Any], groups: Sequence[art.TrajectoryGroup], logs: int
) -> dict[str, Any]:
    await model.log(groups[: _WARM_UP // 8], split="train", step=0, metrics=_METRICS)
    walls, cpus, gaps = [], [], []
    for step in range(1, logs + 1):
        gc.collect()
        async with Ticker() as ticker:
            with Clock() as clock:
                await model.log(groups, split="train", step=step, metrics=_METRICS)
        walls.append(clock.wall_s)
        cpus.append(clock.cpu_s)
        gaps.append(ticker.worst_gap_s)
    return {"wall_s": walls, "cpu_s": cpus, "gap_s": gaps}


def _floors(path: Path) -> dict[str, float]:
    """Time what no format of this content can do without: writing and reading the finished Arrow table."""
    import pyarrow.parquet as pq

    with Clock() as reading:
        table = pq.read_table(path)
    with Clock() as writing:
        pq.write_table(table, path.with_suffix(".floor"), compression="zstd")
    return {"floor_read_s": reading.wall_s, "floor_write_s": writing.wall_s}


def measure_memory(scratch: str, trajectories: int, repeats: int = 1) -> dict[str, float]:
    """Measure the memory that one log takes beyond what its trajectories take, after a warm-up log.

    Args:
        scratch: Where to write.
        trajectories: How many distinct ones there are.
        repeats: How often the list names each of them: the log grows, its input does not.
    """
    groups = make_groups(trajectories)

    async def log() -> float:
        with tempfile.TemporaryDirectory(dir=scratch) as directory:
            model = _model(directory)
            await model.log(groups[: _WARM_UP // 8], split="train", step=0, metrics=_METRICS)
            with ExtraMemory() as memory:
                await model.log(groups * repeats, split="train", step=1, metrics=_METRICS)
        return memory.mb

    return {"extra_mb": asyncio.run(log())}


def _model(directory: str) -> art.Model[Any, Any]:
    return art.Model(name="agent", project="benchmark", base_path=directory, report_metrics=[])


def _file_of_step(directory: str, step: int) -> Path:
    (path,) = Path(directory).rglob(f"{step:04d}.parquet")
    return path
