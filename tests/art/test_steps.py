from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest

import art
from art.errors import StepMismatchError
from art.testing import InMemoryBackend
from tests.art.factories import group, model

if TYPE_CHECKING:
    from pathlib import Path


def ledger_lines(agent: art.Model[Any, Any]) -> list[dict[str, Any]]:
    text = (art.model_dir(agent) / "steps.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


async def trained(
    tmp_path: Path, steps: int
) -> tuple[art.TrainableModel[Any, Any], InMemoryBackend]:
    backend = InMemoryBackend.supporting("step", "listing")
    agent = model(tmp_path)
    await agent.register(backend)
    for _ in range(steps):
        await agent.train([group(0.0, 1.0)])
    return agent, backend


async def test_the_ledger_has_a_line_for_each_train(tmp_path: Path) -> None:
    """Both spellings account for their step."""
    agent, backend = await trained(tmp_path, 2)
    await backend.train(agent, [group(0.0, 1.0)])

    assert [line["step"] for line in ledger_lines(agent)] == [1, 2, 3]


async def test_a_backend_without_a_step_goes_on_from_the_ledger(tmp_path: Path) -> None:
    """A fresh process with a two-method backend continues at the recorded step."""
    await trained(tmp_path, 3)
    agent = model(tmp_path)
    await agent.register(InMemoryBackend())

    assert await agent.get_step() == 3
    assert (await agent.train([group(0.0, 1.0)])).step == 4


async def test_a_backend_ahead_is_adopted_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A crash between the backend's commit and the ledger does not number a step twice."""
    _, backend = await trained(tmp_path, 1)
    backend.checkpoints["tests", "agent"].add(2)

    agent = model(tmp_path)
    with caplog.at_level(logging.WARNING, "art"):
        await agent.register(backend)

    assert await agent.get_step() == 2
    assert len(caplog.records) == 1
    assert (await agent.train([group(0.0, 1.0)])).step == 3
    assert ledger_lines(agent)[1]["adopted"] is True


async def test_a_backend_behind_rewinds_the_books(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After a lost disk the run goes on from the backend's step, and later rows no longer count."""
    agent, _ = await trained(tmp_path, 5)
    await agent.log([group(1.0)], step=5)
    await agent.log([group(0.5)], step=2)
    fresh = InMemoryBackend.supporting("step", "listing")
    fresh.checkpoints["tests", "agent"] = {0, 1, 2, 3}

    agent = model(tmp_path)
    with caplog.at_level(logging.WARNING, "art"):
        await agent.register(fresh)

    assert "step 5" in caplog.text
    assert "is 3" in caplog.text
    assert ledger_lines(agent)[-1]["rewind_to"] == 3
    assert await agent.get_step() == 3
    result = await agent.delete_checkpoints("val/reward", dry_run=True)
    assert result.best == 2


async def test_a_strict_register_refuses_a_mismatch(tmp_path: Path) -> None:
    """`on_step_mismatch="error"` names both numbers and writes nothing to the ledger."""
    agent, backend = await trained(tmp_path, 2)
    backend.checkpoints["tests", "agent"] = {0}
    before = ledger_lines(agent)

    with pytest.raises(StepMismatchError, match="at step 2, the backend's newest checkpoint is 0"):
        await model(tmp_path).register(backend, on_step_mismatch="error")

    assert ledger_lines(agent) == before


async def test_a_directory_without_a_ledger_takes_its_step_from_training_rows(
    tmp_path: Path,
) -> None:
    """An upstream directory goes on at its highest trained step; plain logs do not count."""
    agent = model(tmp_path)
    path = art.model_dir(agent) / "history.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text(
        '{"train/reward": 0.5, "train/loss": 1.0, "step": 4, "recorded_at": "2026-01-01T00:00:00"}\n'
        '{"val/reward": 0.5, "step": 90, "recorded_at": "2026-01-01T00:00:00"}\n'
        '{"train/reward": 0.5, "step": 95, "recorded_at": "2026-01-01T00:00:00"}\n'
    )
    await agent.register(InMemoryBackend())

    assert await agent.get_step() == 4
    assert (await agent.train([group(0.0, 1.0)])).step == 5
