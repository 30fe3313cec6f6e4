from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import art
from art.errors import InvalidTrajectoriesError
from art.testing import InMemoryBackend
from tests.art.factories import group, model, trajectory

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    HistoryRows = Callable[[art.Model[Any, Any]], list[dict[str, Any]]]


def itself() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["itself"] = value
    return value


async def test_the_first_log_sweeps_what_killed_writers_left(tmp_path: Path) -> None:
    """Half-written files of processes that were killed do not fill the disk; no other file is touched."""
    agent = model(tmp_path)
    await agent.log([group(1.0)], step=3)
    root = art.model_dir(agent)
    half = [
        root / ".state.json.17.0badcafe.tmp",
        root / ".model.json.17.0badcafe.tmp",
        root / "trajectories" / "val" / ".0002.parquet.17.0badcafe.tmp",
    ]
    mine = [root / "notes.tmp", root / ".env", root / "trajectories" / "val" / "mine.tmp"]
    for path in (*half, *mine):
        path.write_bytes(b"half")

    await model(tmp_path).log([group(1.0)], step=3)

    assert not any(path.exists() for path in half)
    assert all(path.exists() for path in mine)
    assert (root / "trajectories" / "val" / "0003.parquet").exists()


async def test_c022_a_rollout_that_cannot_be_stored_is_named_and_the_others_are_saved(
    tmp_path: Path, history_rows: HistoryRows
) -> None:
    """One bad value costs its own rollout alone; file and row tell of the others, and the error of the bad one."""
    agent = model(tmp_path)
    bad = trajectory(9.0)
    bad.metadata["k"] = itself()
    bad_group = group(9.0)
    bad_group.metadata["m"] = object()
    error = ValueError("no answer")
    groups = [
        group(1.0, 2.0),
        art.TrajectoryGroup([trajectory(3.0), bad, error]),
        bad_group,
        art.TrajectoryGroup([]),
    ]

    with pytest.raises(InvalidTrajectoriesError) as caught:
        await agent.log(groups, split="val", step=4)

    message = str(caught.value)
    assert "0004.parquet: group 1, trajectory 1: metadata['k'] contains itself" in message
    assert "; group 2: metadata['m'] is a object" in message
    assert "nothing was written" not in message
    loaded = art.load_trajectories(art.model_dir(agent))
    assert [[t.reward for t in g] for g in loaded] == [[1.0, 2.0], [3.0], [9.0], []]
    assert len(loaded[1].exceptions) == 1
    assert loaded[2].metadata == {}
    [row] = history_rows(agent)
    assert row["val/num_trajectories"] == 4.0
    assert row["val/reward"] == 3.75


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("metrics", {"score": None}, r"metrics\['score'\] is None, not a number"),
        ("auto_metrics", {"score": "high"}, r"auto_metrics\['score'\] is 'high', not a number"),
        ("metrics", {"score": 10**400}, r"metrics\['score'\] is an integer too large"),
        ("metrics", {3: 1.0}, r"metrics\[3\] has the key 3"),
        ("reward", None, "reward is None, not a number"),
        ("reward", 10**400, "reward is too large"),
        ("messages_and_choices", iter([]), "messages_and_choices is a list_iterator, not a list"),
        ("logs", iter(["a"]), "logs is a list_iterator, not a list"),
        ("additional_histories", [object()], r"additional_histories\[0\] is a object"),
    ],
)
@pytest.mark.parametrize("spelling", ["log", "train"])
async def test_c022_one_bad_value_costs_its_own_rollout_alone(
    tmp_path: Path, history_rows: HistoryRows, field: str, value: Any, told: str, spelling: str
) -> None:
    """Whatever is wrong with one of four rollouts, the three others are on disk, and the error names the fourth."""
    agent = model(tmp_path)
    await agent.register(InMemoryBackend())
    bad = trajectory(9.0)
    setattr(bad, field, value)
    groups = [group(0.0, 1.0), art.TrajectoryGroup([trajectory(2.0), bad])]

    with pytest.raises(InvalidTrajectoriesError, match=f"group 1, trajectory 1: {told}") as caught:
        await (agent.log(groups, split="train") if spelling == "log" else agent.train(groups))

    loaded = art.load_trajectories(art.model_dir(agent))
    assert [[t.reward for t in g] for g in loaded] == [[0.0, 1.0], [2.0]]
    [row] = history_rows(agent)
    assert row["train/num_trajectories"] == 3.0
    assert await agent.get_step() == 0
    notes = getattr(caught.value, "__notes__", [])
    assert ["did not start" in note for note in notes] == ([True] if spelling == "train" else [])


async def test_metrics_of_the_users_own_are_logged_although_every_rollout_is_bad(
    tmp_path: Path, history_rows: HistoryRows
) -> None:
    """The row has them, and the error tells of the rollouts."""
    agent = model(tmp_path)
    bad = trajectory(1.0)
    bad.metadata["k"] = itself()

    with pytest.raises(InvalidTrajectoriesError, match="group 0, trajectory 0"):
        await agent.log([bad], metrics={"loss": 0.5}, step=1)

    [row] = history_rows(agent)
    assert row["val/loss"] == 0.5


async def test_where_no_rollout_can_be_stored_nothing_is_written(tmp_path: Path) -> None:
    """A call whose every rollout is bad leaves no file and no row."""
    agent = model(tmp_path)
    bad = trajectory(1.0)
    bad.metadata["k"] = itself()

    with pytest.raises(InvalidTrajectoriesError, match="nothing was written"):
        await agent.log([bad], step=1)

    assert not (art.model_dir(agent) / "history.jsonl").exists()
    assert not list(art.model_dir(agent).rglob("*.parquet"))


async def test_a_relative_base_path_means_the_directory_of_the_first_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, history_rows: HistoryRows
) -> None:
    """A program that changes its directory between calls goes on with the books that it opened."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    agent = art.TrainableModel(name="m", project="p", base_model="none", base_path="books")
    await agent.register(InMemoryBackend())
    await agent.train([group(0.0, 1.0)])

    monkeypatch.chdir(tmp_path / "elsewhere")
    await agent.train([group(0.0, 1.0)])
    await agent.log(metrics={"reward": 1.0})

    assert not list((tmp_path / "elsewhere").iterdir())
    monkeypatch.chdir(tmp_path)
    assert [row["step"] for row in history_rows(agent)] == [0, 1, 1, 2, 2]
