"""Directories of older versions, and one script on several backends."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import art
from art.testing import InMemoryBackend
from art.utils.trajectory_logging import read_trajectory_groups_parquet
from tests.art.factories import group, model, trajectory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    HistoryRows = Callable[[art.Model[Any, Any]], list[dict[str, Any]]]

# What version 0.5.9 leaves after two steps: the history of its own metrics, and the first parquet form.
OLD_HISTORY = """\
{"train/reward": 0.25, "train/reward_std_dev": 0, "train/loss": 0.7, "step": 1, "recorded_at": "2026-01-01T00:00:00"}
{"val/reward": 0.75, "val/exception_rate": 0.0, "step": 1, "recorded_at": "2026-01-01T00:01:00"}
{"train/reward": 0.5, "train/grad_norm": Infinity, "train/loss": 0.6, "step": 2, "recorded_at": "2026-01-01T00:02:00"}
{"val/reward": 0.5, "val/exception_rate": 0.0, "step": 2, "recorded_at": "2026-01-01T00:03:00"}
"""
OLD_MESSAGE = pa.struct(
    [(name, pa.string()) for name in ("role", "content", "tool_calls", "tool_call_id")]
    + [("trainable", pa.bool_())]
)
OLD_SCHEMA = pa.schema(
    [
        ("group_index", pa.int64()),
        ("reward", pa.float64()),
        *((name, pa.string()) for name in ("metrics", "metadata", "tools")),
        ("logs", pa.list_(pa.string())),
        ("messages", pa.list_(OLD_MESSAGE)),
    ]
)


def old_directory(agent: art.Model[Any, Any]) -> Path:
    root = art.model_dir(agent)
    rows = [
        {
            "group_index": i // 2,
            "reward": i / 4,
            "metrics": '{"turns": 2}',
            "metadata": '{"task": "t"}',
            "logs": ["line"],
            "messages": [
                {"role": "user", "content": "q", "trainable": False},
                {"role": "assistant", "content": f"answer {i}", "trainable": True},
            ],
        }
        for i in range(4)
    ]
    for split, step in (("train", 1), ("val", 1), ("train", 2), ("val", 2)):
        path = root / "trajectories" / split / f"{step:04d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows, OLD_SCHEMA), path, compression="zstd")
    (root / "history.jsonl").write_text(OLD_HISTORY)
    (root / "state.json").write_text('{"wandb_run_id": "abc", "offset": 7}')
    return root


async def test_c160_a_run_of_an_older_version_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its step, state, rows and rollouts are taken up; nothing of them is lost by logging on top of them."""
    agent = model(tmp_path)
    root = old_directory(agent)
    backend = InMemoryBackend.supporting("step", "listing")
    backend.checkpoints["tests", "agent"] = {0, 1, 2}

    await agent.register(backend)

    assert await agent.get_step() == 2
    assert caplog.records == []  # the books and the backend agree
    assert agent.read_state() == {"wandb_run_id": "abc", "offset": 7}
    await agent.log([trajectory(0.0)], split="val", step=2)
    assert (await agent.train([group(0.0, 1.0)])).step == 3
    lines = (root / "history.jsonl").read_text().splitlines(keepends=True)
    assert "".join(lines[:4]) == OLD_HISTORY
    assert len(lines) == 7
    for split, step, added in (("train", 1, []), ("val", 2, [0.0]), ("train", 2, [0.0, 1.0])):
        path = root / "trajectories" / split / f"{step:04d}.parquet"
        read = [t for old in read_trajectory_groups_parquet(path) for t in old]
        assert [t.reward for t in read] == [0.0, 0.25, 0.5, 0.75, *added]
        assert read[3].messages()[-1]["content"] == "answer 3"
        assert (read[3].metrics, read[3].metadata) == ({"turns": 2}, {"task": "t"})

    result = await agent.delete_checkpoints()

    assert (result.best, backend.checkpoints["tests", "agent"]) == (1, {1, 3})


class TwoMethods:
    """A stranger's backend: the two methods and nothing else."""

    async def _train_model(
        self, model: Any, groups: Any, config: Any, dev_config: Any, verbose: bool = False
    ) -> AsyncIterator[dict[str, float]]:
        yield {"loss": 0.5, "grad_norm": 1.0}

    async def _delete_checkpoint_files(self, model: Any, steps_to_keep: list[int]) -> None:
        pass


BACKENDS: dict[str, Callable[[], Any]] = {
    "bare": InMemoryBackend,
    "capable": lambda: InMemoryBackend.supporting(
        "step", "listing", "inference", "inference_name", "close"
    ),
    "stranger": TwoMethods,
}


async def script(base_path: Path, backend: Any) -> dict[str, Any]:
    """Run a whole job; return its books by file, without times and the backend's name."""
    agent = model(base_path)
    await agent.register(backend)
    scaled: Any = {"scale_learning_rate_by_reward_std_dev": True}
    await agent.log([group(0.25, 0.75)])
    for step in range(3):
        batch = [group(0.0, 1.0 + step), group(1.0, 1.0)]
        await agent.train(batch, art.TrainConfig(learning_rate=1e-4), _config=scaled)
        await agent.log([group(0.5 + step, 1.0)], metrics={"accuracy": step / 4})
    batch = [group(0.0, 1.0)]
    result = await art.backend_train(agent, batch, learning_rate=1e-4)
    await agent.log(batch, "train", metrics=result.metrics, step=result.step)
    deletion = await agent.delete_checkpoints()
    await agent.close()
    books: dict[str, Any] = {"kept": deletion.kept, "best": deletion.best}
    root = art.model_dir(agent)
    for path in sorted(root.rglob("*")):
        if path.suffix == ".jsonl":
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            books[path.name] = [
                {k: v for k, v in row.items() if k not in {"recorded_at", "time"}} for row in rows
            ]
        elif path.name == "model.json":
            books[path.name] = {**json.loads(path.read_text()), "backend": None}
        elif path.is_file():
            books[str(path.relative_to(root))] = path.read_bytes()
    return books


async def test_c162_one_script_on_three_backends_leaves_the_same_books(tmp_path: Path) -> None:
    """Every file is the same but for its times and the backend's name, whatever the backend can do."""
    bare, capable, stranger = [
        await script(tmp_path / name, make()) for name, make in BACKENDS.items()
    ]

    assert bare == capable == stranger
    assert [name for name in bare if name.endswith((".jsonl", ".parquet"))] == [
        "history.jsonl",
        "steps.jsonl",
        *(f"trajectories/train/{step:04d}.parquet" for step in (0, 1, 2, 4)),
        *(f"trajectories/val/{step:04d}.parquet" for step in range(4)),
    ]
    assert (bare["best"], bare["kept"]) == (3, [3, 4])


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64, np.bool_])
async def test_c033_numpy_values_go_through_log_and_train(
    tmp_path: Path, history_rows: HistoryRows, kind: Callable[[float], Any]
) -> None:
    """Rewards and metrics of a rollout, and the metrics of a call and of the backend, may be numpy's."""
    agent = model(tmp_path)
    await agent.register(InMemoryBackend(events=[{"loss": kind(1.0)}]))
    batch = art.TrajectoryGroup(
        [trajectory(kind(reward), metrics={"m": kind(1.0)}) for reward in (0.0, 1.0)],
        metrics={"judge": kind(1.0)},
    )

    await agent.log([batch], metrics={"given": kind(1.0)})
    result = await agent.train([batch])

    logged, before, after = history_rows(agent)
    assert [logged[f"val/{key}"] for key in ("reward", "m", "group_metric_judge", "given")] == [
        0.5,
        1.0,
        1.0,
        1.0,
    ]
    assert (before["train/reward"], after["train/loss"]) == (0.5, 1.0)
    assert type(result.metrics["loss"]) is float


async def test_a_failing_train_leaves_its_rollouts_on_disk(tmp_path: Path) -> None:
    """What the backend could not train can be read back, images and all, and trained by the next call."""
    backend = InMemoryBackend(raises=RuntimeError("out of memory"))
    agent = model(tmp_path)
    await agent.register(backend)
    parts: list[Any] = [
        {"type": "text", "text": "q"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
    ]
    messages: list[Any] = [{"role": "user", "content": parts}]
    batch = [
        art.TrajectoryGroup(
            [art.Trajectory(messages_and_choices=messages, reward=r) for r in (0.0, 1.0)]
        )
    ]

    with pytest.raises(RuntimeError, match="out of memory"):
        await agent.train(batch)

    path = art.model_dir(agent) / "trajectories" / "train" / "0000.parquet"
    kept = read_trajectory_groups_parquet(path)
    assert art.same_groups(kept, batch)
    backend.raises = None
    assert (await agent.train(kept)).step == 1


async def test_a_generator_of_rollouts_is_logged_whole(
    tmp_path: Path, history_rows: HistoryRows
) -> None:
    """The first item of a generator is no less a rollout than the others: the mean of 1 and 3 is 2."""
    agent = model(tmp_path)

    await agent.log(trajectory(reward) for reward in (1.0, 3.0))
    await agent.log(group(reward) for reward in (1.0, 3.0))

    assert [row["val/reward"] for row in history_rows(agent)] == [2.0, 2.0]


async def test_c003_cut_tool_calls_and_early_crashes_are_logged_and_trained(tmp_path: Path) -> None:
    """Arguments that are no JSON reach backend and file to the byte, a crash with its own text."""
    cut = '{"query": "Gr\\u00fc'

    async def rollout(number: int) -> art.Trajectory:
        if number == 7:
            raise ConnectionError("no route to the tool server")
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": cut}}
        reply: Any = {"role": "assistant", "content": None, "tool_calls": [call]}
        choice: Any = {"finish_reason": "length", "index": 0, "message": reply}
        messages: Any = [{"role": "user", "content": "q"}, choice if number % 4 == 0 else reply]
        return art.Trajectory(messages_and_choices=messages, reward=number % 2)

    backend = InMemoryBackend()
    agent = model(tmp_path)
    await agent.register(backend)
    batch = await art.gather_trajectory_groups(
        [art.TrajectoryGroup(rollout(number) for number in range(8))], max_exceptions=1
    )

    await agent.train(batch)

    path = art.model_dir(agent) / "trajectories" / "train" / "0000.parquet"
    [read] = read_trajectory_groups_parquet(path)
    [trained] = backend.calls[0].groups
    assert art.same_groups([read], batch)
    assert [error.message for error in read.exceptions] == ["no route to the tool server"]
    for kept in (read, trained):
        replies: list[Any] = [t.messages()[-1] for t in kept]
        arguments = [reply["tool_calls"][0]["function"]["arguments"] for reply in replies]
        assert arguments == [cut] * 7
