from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from art.testing import InMemoryBackend
from tests.art.factories import group, model

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    import art

KEY = ("tests", "agent")


async def trained(
    tmp_path: Path, scores: dict[int, float], steps: int = 5
) -> tuple[art.TrainableModel[Any, Any], InMemoryBackend]:
    """A model at step `steps` whose val reward is known for some steps."""
    backend = InMemoryBackend.supporting("listing")
    agent = model(tmp_path)
    await agent.register(backend)
    for _ in range(steps):
        await agent.train([group(0.0, 1.0)])
    for step, score in scores.items():
        await agent.log([group(score)], step=step)
    return agent, backend


async def test_the_latest_and_the_best_are_kept(tmp_path: Path) -> None:
    """All other checkpoints go, and the result tells why."""
    agent, backend = await trained(tmp_path, {1: 0.2, 2: 0.9, 4: 0.5})

    result = await agent.delete_checkpoints()

    assert backend.checkpoints[KEY] == {2, 5}
    assert (result.kept, result.deleted, result.best) == ([2, 5], [0, 1, 3, 4], 2)
    assert set(result.reasons) == {0, 1, 2, 3, 4, 5}


async def test_c061_nothing_is_deleted_when_the_metric_is_unknown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning names the file, the metric and the keys that exist."""
    agent, backend = await trained(tmp_path, {1: 0.5})

    with caplog.at_level(logging.WARNING, "art"):
        result = await agent.delete_checkpoints("val/rewrad")

    assert backend.checkpoints[KEY] == {0, 1, 2, 3, 4, 5}
    assert result.deleted == []
    assert "history.jsonl" in caplog.text
    assert "val/reward" in caplog.text


async def test_c046_a_metric_that_appears_late_still_finds_the_best(tmp_path: Path) -> None:
    """More than a hundred rows without the metric do not hide it."""
    agent, backend = await trained(tmp_path, {})
    for step in range(120):
        await agent.log(metrics={"loss": 1}, split="extra", step=step)
    await agent.log([group(1.0)], step=3)
    await agent.log([group(0.5)], step=4)

    await agent.delete_checkpoints()

    assert backend.checkpoints[KEY] == {3, 5}


async def test_c069_a_late_evaluation_is_credited_to_its_step(tmp_path: Path) -> None:
    """An eval of step 2 that is logged after step 5 counts for step 2."""
    agent, backend = await trained(tmp_path, {5: 0.1, 2: 0.9})

    await agent.delete_checkpoints()

    assert backend.checkpoints[KEY] == {2, 5}


async def test_ties_go_to_the_newest(tmp_path: Path) -> None:
    """The choice among equals is always the same one."""
    agent, backend = await trained(tmp_path, {1: 0.9, 3: 0.9, 2: 0.9})

    await agent.delete_checkpoints()

    assert backend.checkpoints[KEY] == {3, 5}


async def test_train_reward_of_backend_train_is_credited_to_the_policy(tmp_path: Path) -> None:
    """Groups logged at N+1 speak for checkpoint N, whose policy made them."""
    backend = InMemoryBackend.supporting("listing")
    agent = model(tmp_path)
    await agent.register(backend)
    for reward in (0.1, 0.9, 0.2, 0.3):
        groups = [group(reward, reward + 0.01)]
        result = await backend.train(agent, groups)
        await agent.log(groups, "train", metrics=result.metrics, step=result.step)

    await agent.delete_checkpoints("train/reward")

    assert backend.checkpoints[KEY] == {1, 4}


async def test_lower_can_be_better(tmp_path: Path) -> None:
    """`mode="min"` keeps the smallest."""
    agent, backend = await trained(tmp_path, {1: 0.2, 2: 0.9})

    await agent.delete_checkpoints(mode="min")

    assert backend.checkpoints[KEY] == {1, 5}


async def test_only_the_latest_is_kept_without_a_metric(tmp_path: Path) -> None:
    """`best_checkpoint_metric=None` asks for no best."""
    agent, backend = await trained(tmp_path, {1: 0.2})

    await agent.delete_checkpoints(None)

    assert backend.checkpoints[KEY] == {5}


async def test_unscored_steps_can_be_kept(tmp_path: Path) -> None:
    """Steps whose evaluation may still run survive on request."""
    agent, backend = await trained(tmp_path, {1: 0.2})

    await agent.delete_checkpoints(keep_unscored=2)

    assert {1, 4, 5} <= backend.checkpoints[KEY]
    assert 2 not in backend.checkpoints[KEY]


async def test_c066_a_rule_of_the_users_own_decides(tmp_path: Path) -> None:
    """The rule sees every step with its metric; the latest is added whatever it says."""
    agent, backend = await trained(tmp_path, {1: 0.2, 3: 0.4})

    def with_a_score(steps: list[art.StepInfo]) -> list[int]:
        return [info.step for info in steps if info.metric is not None]

    await agent.delete_checkpoints(retention=with_a_score)

    assert backend.checkpoints[KEY] == {1, 3, 5}


async def test_a_dry_run_deletes_nothing(tmp_path: Path) -> None:
    """It tells what would go."""
    agent, backend = await trained(tmp_path, {1: 0.2})

    result = await agent.delete_checkpoints(dry_run=True)

    assert result.deleted == [0, 2, 3, 4]
    assert backend.checkpoints[KEY] == {0, 1, 2, 3, 4, 5}


async def test_a_backend_that_cannot_list_is_told_what_to_keep(tmp_path: Path) -> None:
    """Two methods are enough for deletion."""
    backend = InMemoryBackend()
    agent = model(tmp_path)
    await agent.register(backend)
    for _ in range(3):
        await agent.train([group(0.0, 1.0)])
    await agent.log([group(1.0)], step=1)

    result = await agent.delete_checkpoints()

    assert backend.checkpoints[KEY] == {1, 3}
    assert (result.kept, result.deleted) == ([1, 3], [0, 2])
    assert set(result.reasons) == {0, 1, 2, 3}


async def test_deleted_are_only_checkpoints_that_were_there(tmp_path: Path) -> None:
    """Where the backend cannot list, neither steps that were never trained nor those gone before are named."""
    backend = InMemoryBackend.supporting("step")
    backend.checkpoints[KEY] = {0, 50}
    agent = model(tmp_path)
    await agent.register(backend)
    for _ in range(2):
        await agent.train([group(0.0, 1.0)])
    await agent.log([group(1.0)], step=51)

    dry = await agent.delete_checkpoints(dry_run=True)
    first = await agent.delete_checkpoints()
    await agent.train([group(0.0, 1.0)])
    second = await agent.delete_checkpoints()

    assert dry == first
    assert (first.kept, first.deleted) == ([51, 52], [0, 50])
    assert set(first.reasons) == {0, 50, 51, 52}
    assert (second.kept, second.deleted) == ([51, 53], [52])
    assert backend.checkpoints[KEY] == {51, 53}


async def test_a_checkpoint_that_is_made_again_can_be_deleted_again(tmp_path: Path) -> None:
    """After a rewind the steps of the new life are named like any others."""
    backend = InMemoryBackend.supporting("step")
    agent = model(tmp_path)
    await agent.register(backend)
    for _ in range(3):
        await agent.train([group(0.0, 1.0)])
    assert (await agent.delete_checkpoints(None)).deleted == [0, 1, 2]
    backend.checkpoints[KEY] = {0}
    for _ in range(2):
        await agent.train([group(0.0, 1.0)])

    assert (await agent.delete_checkpoints(None)).deleted == [1]


async def test_the_best_of_a_life_that_is_over_does_not_count(tmp_path: Path) -> None:
    """A score that a rewind took back keeps no checkpoint."""
    agent, _ = await trained(tmp_path, {2: 0.5, 4: 0.9})
    rewound = InMemoryBackend.supporting("listing", "step")
    rewound.checkpoints[KEY] = {0, 1, 2, 3}
    await agent.register(rewound)
    await agent.train([group(0.0, 1.0)])

    result = await agent.delete_checkpoints()

    assert result.best == 2
    assert rewound.checkpoints[KEY] == {2, 4}


async def test_a_score_that_a_rewind_takes_back_does_not_choose(tmp_path: Path) -> None:
    """Where the backend lost its newest checkpoints, the books follow before they are asked for the best."""
    backend = InMemoryBackend.supporting("step", "listing")
    agent = model(tmp_path)
    await agent.register(backend)
    for _ in range(5):
        await agent.train([group(0.0, 1.0)])
    await agent.log([group(0.5)], step=2)
    agent._books().history.append({"val/reward": 9.0}, step=5, policy_step=1)
    backend.checkpoints[KEY] = {0, 1, 2, 3}

    result = await agent.delete_checkpoints()

    assert (result.best, result.kept) == (2, [2, 3])
    assert backend.checkpoints[KEY] == {2, 3}
