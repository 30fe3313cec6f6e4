"""Which checkpoint is best, and how the learning rate is scaled: questions to a long history."""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.history_files import EVAL_EVERY, NAME, PROJECT, val_reward
from benchmarks.workload.measure import Clock, peak_rss_mb

METRIC = "val/reward"
_CHECKPOINTS = 100
_REPEATS = 20
_ONE_ROW = b'{"val/reward": 0.5, "step": 0}\n'


def measure_ours(scratch: str, base_path: str, path: str, latest_step: int) -> dict[str, Any]:
    """Ask by the public API alone: `delete_checkpoints(dry_run=True)`, and `train` with scaling.

    `cold_s` is everything that a new process does to come to both answers: `register` (reads the step),
    `delete_checkpoints` (best step among 100 listed checkpoints) and one `train` of a tiny batch, which
    contains its log and its ledger line. Before it, the same is done twice with a new directory, so that
    nothing is imported inside the clock, and the file is read once, so that it is in memory.

    `later_s` is the same after one more appended row: `best_s`, which is `delete_checkpoints`, and `rate_s`,
    what `train` takes longer with scaling than without. `append_s` is a log of metrics alone.
    """
    return asyncio.run(_Asker(base_path, latest_step).measure(scratch, Path(path)))


class _Asker:
    def __init__(self, base_path: str, latest_step: int) -> None:
        self._base_path = base_path
        self._latest = latest_step
        gap = max(EVAL_EVERY, latest_step // _CHECKPOINTS // EVAL_EVERY * EVAL_EVERY)
        self._listed = {*range(0, latest_step, gap), latest_step}

    async def measure(self, scratch: str, path: Path) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(dir=scratch) as empty:
            await self._ask(empty, {0})
            await self._ask(empty, {0, 1})  # finds the rows of the first
        _read_through(path)
        model, clocks, best = await self._ask(self._base_path, self._listed)
        expected = max(
            (step for step in self._listed if step % EVAL_EVERY == 0 and step < self._latest),
            key=val_reward,
        )
        if best != expected:
            raise AssertionError(f"best step {best}, expected {expected}")
        return {
            "cold_s": sum(clock.wall_s for clock in clocks.values()),
            **{f"cold_{name}_s": clock.wall_s for name, clock in clocks.items()},
            "peak_rss_mb": peak_rss_mb(),
            **await self._incremental(model),
        }

    async def _ask(self, base_path: str, listed: set[int]) -> tuple[Any, dict[str, Clock], Any]:
        import art
        from art.testing import InMemoryBackend

        backend = InMemoryBackend.supporting("listing", "step")
        backend.checkpoints[PROJECT, NAME] = set(listed)
        model: Any = art.TrainableModel(
            name=NAME, project=PROJECT, base_model="none", base_path=base_path, report_metrics=[]
        )
        clocks = {name: Clock() for name in ("register", "best", "train")}
        with clocks["register"]:
            await model.register(backend)
        with clocks["best"]:
            result = await model.delete_checkpoints(METRIC, dry_run=True)
        with clocks["train"]:
            await _train(model, scaled=True)
        return model, clocks, result.best

    async def _incremental(self, model: Any) -> dict[str, float]:
        appends, bests = [], []
        trains: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(_REPEATS):
            appends.append(await _append(model))
            with Clock() as clock:
                await model.delete_checkpoints(METRIC, dry_run=True)
            bests.append(clock.wall_s)
            for scaled, times in trains.items():
                await _append(model)
                with Clock() as clock:
                    await _train(model, scaled=scaled)
                times.append(clock.wall_s)
        scaled_s, plain_s = (statistics.median(trains[scaled]) for scaled in (True, False))
        best_s, rate_s = statistics.median(bests), max(0.0, scaled_s - plain_s)
        return {
            "append_s": statistics.median(appends),
            "later_s": best_s + rate_s,
            "best_s": best_s,
            "rate_s": rate_s,
        }


async def _append(model: Any) -> float:
    with Clock() as clock:
        await model.log(metrics={"reward": 0.0, "loss": 0.5}, split="val")
    return clock.wall_s


async def _train(model: Any, *, scaled: bool) -> None:
    import art

    messages: list[Any] = [
        {"role": "user", "content": "Say a."},
        {"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": "a"}},
    ]
    batch = [art.Trajectory(messages_and_choices=messages, reward=reward) for reward in (0.0, 1.0)]
    await model.train(
        [art.TrajectoryGroup(batch)],
        art.TrainConfig(learning_rate=1e-5),
        {"scale_learning_rate_by_reward_std_dev": scaled},
    )


def measure_upstream(path: str) -> dict[str, float]:
    """Ask as upstream's `delete_checkpoints` does, at every call anew; it has no learning-rate scaling.

    The expression is that of 0.5.23; the one of 0.5.18 raises with polars 2.
    """
    import polars as pl

    def best_step(source: str | bytes) -> Any:
        return (
            pl.read_ndjson(source)
            .drop_nulls(subset=[METRIC])
            .group_by("step")
            .agg(pl.col(METRIC).mean())
            .sort(METRIC)
            .select(pl.col("step").last())
            .item()
        )

    best_step(_ONE_ROW)
    _read_through(Path(path))
    with Clock() as clock:
        best = best_step(path)
    if not isinstance(best, int) or best % EVAL_EVERY:
        raise AssertionError(f"best step {best!r}")
    return {"best_s": clock.wall_s, "peak_rss_mb": peak_rss_mb()}


def measure_floors(path: str, reader: str) -> dict[str, float]:
    """Time another way through the file; nothing is told where the library is not there.

    Args:
        path: The history.
        reader: "polars" (`polars.read_ndjson`), "bare" (its bytes), "json" or "orjson" (each line parsed).
    """
    _read_through(Path(path))
    if reader == "polars":
        import polars as pl

        pl.read_ndjson(_ONE_ROW)
        with Clock() as clock:
            pl.read_ndjson(path)
    elif reader == "bare":
        with Clock() as clock:
            _read_through(Path(path))
    else:
        try:
            loads = json.loads if reader == "json" else import_module(reader).loads
        except ImportError:
            return {}
        with Clock() as clock, Path(path).open("rb") as file:
            for line in file:
                loads(line)
    return {"wall_s": clock.wall_s}


def _read_through(path: Path) -> None:
    buffer = bytearray(2**20)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
