"""Checkpoints that others still name, and directories that hold more than checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import art
from art.testing import InMemoryBackend
from tests.art.chat_endpoint import completion, serving
from tests.art.factories import group, model, trajectory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Engine(InMemoryBackend):
    """A backend whose endpoint serves exactly the checkpoints that exist, under their names."""

    async def _get_step(self, model: Any) -> int:
        return max(self._steps(model))

    async def _list_checkpoint_steps(self, model: Any) -> list[int]:
        return sorted(self._steps(model))

    async def _prepare_backend_for_training(self, model: Any, config: Any) -> tuple[str, str]:
        return self.endpoint

    def _model_inference_name(self, model: Any, step: int | None = None) -> str:
        return f"{model.name}@{max(self._steps(model)) if step is None else step}"

    def answer(self, asked: str) -> tuple[int, dict[str, Any]]:
        name, _, step = asked.partition("@")
        if int(step) not in self.checkpoints["tests", name]:
            return 404, {"error": {"message": f"{asked} was pruned", "code": "model_not_found"}}
        return 200, completion(asked, f"from {step}")


@pytest.fixture
def engine() -> Iterator[Engine]:
    """A backend with a real endpoint that lives as long as the test."""
    backend = Engine()
    with serving(backend.answer) as address:
        backend.endpoint = (address, "key")
        yield backend


async def test_c063_a_rollout_that_names_a_pruned_step_fails_and_is_counted(
    tmp_path: Path, engine: Engine
) -> None:
    """Its name goes on meaning that step: the endpoint's 404 is its exception, never another model's text."""
    agent = model(tmp_path)
    await agent.register(engine)
    await agent.train([group(0.0, 1.0)])
    pinned = agent.get_inference_name()

    async def rollout(turns_before_pruning: int) -> art.Trajectory:
        result = art.Trajectory(messages_and_choices=[{"role": "user", "content": "q"}])
        for turn in range(3):
            if turn == turns_before_pruning:
                await agent.train([group(0.0, 1.0)])
                await agent.delete_checkpoints(None)
            completion = await agent.openai_client().chat.completions.create(
                model=pinned, messages=result.messages()
            )
            result.messages_and_choices.append(completion.choices[0])
        return result

    [failed] = await art.gather_trajectory_groups(
        [art.TrajectoryGroup([rollout(1)])], max_exceptions=1
    )
    assert pinned == agent.get_inference_name(step=1) == "agent@1"
    assert agent.get_inference_name() == "agent@2"
    assert failed.trajectories == []
    [error] = failed.exceptions
    assert "NotFoundError" in error.type
    assert "agent@1 was pruned" in error.message

    pinned = agent.get_inference_name()
    [whole] = await art.gather_trajectory_groups([art.TrajectoryGroup([rollout(9)])])
    texts = [message["content"] for message in whole.trajectories[0].messages()]
    assert texts == ["q", *["from 2"] * 3]
    await agent.close()


@pytest.mark.parametrize("capabilities", [(), ("step", "listing")], ids=["bare", "listing"])
async def test_c075_names_that_are_no_steps_confuse_nobody(
    tmp_path: Path, capabilities: tuple[Any, ...]
) -> None:
    """A dangling `latest` link, and whatever else lies beside the checkpoints, neither counts nor goes."""
    backend = InMemoryBackend.supporting(*capabilities)
    agent = model(tmp_path)
    checkpoints = art.checkpoints_dir(agent)
    checkpoints.mkdir(parents=True)
    (checkpoints / "latest").symlink_to(checkpoints / "0009")  # pruned long ago
    (checkpoints / "0007").symlink_to(tmp_path)
    for name in ("best", "0005.tmp", "00012", "-001", "1e3"):
        (checkpoints / name).mkdir()
    (checkpoints / "9999").write_text("a file")
    before = sorted(checkpoints.iterdir())

    await agent.register(backend)
    assert await agent.get_step() == 0
    assert [(await agent.train([group(0.0, 1.0)])).step for _ in range(3)] == [1, 2, 3]
    await agent.log([trajectory(1.0)], step=2)
    result = await agent.delete_checkpoints()

    assert (result.kept, result.deleted) == ([2, 3], [0, 1])
    assert sorted(checkpoints.iterdir()) == before
    assert await model(tmp_path).get_step() == 3


@pytest.mark.parametrize("name", ["../x", "../../x", "a/../../x", "/tmp/x", "..\\x", "~/x"])
async def test_c081_a_name_that_looks_like_a_path_stays_inside(tmp_path: Path, name: str) -> None:
    """Training and deleting under such a project, name and split touches nothing outside the base path."""
    base = tmp_path / "base"
    neighbour = tmp_path / "x" / "models" / "x" / "checkpoints" / "0000"
    neighbour.mkdir(parents=True)
    agent = art.TrainableModel(
        name=name, project=name, base_model="none", base_path=str(base), report_metrics=[]
    )
    await agent.register(InMemoryBackend())
    await agent.log([trajectory(1.0)], split=name)
    await agent.train([group(0.0, 1.0)])
    await agent.delete_checkpoints(None)

    assert art.model_dir(agent).parent.parent.parent == base
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "x"]
    assert list(base.iterdir()) == [art.model_dir(agent).parent.parent]
    assert neighbour.is_dir()
    assert [path for path in (tmp_path / "x").rglob("*") if path.is_file()] == []
