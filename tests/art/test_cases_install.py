"""Machines without an engine, and what they are told."""

from __future__ import annotations

import re
from importlib.metadata import requires
from typing import TYPE_CHECKING

import pytest

from tests.art.children import run, without

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

ENGINES = ("torch", "vllm", "transformers", "peft", "safetensors", "tinker", "wandb")

JOB = """
import asyncio, sys
import art
from art.testing import InMemoryBackend

async def rollout(reward):
    return art.Trajectory(messages_and_choices=[{"role": "user", "content": "q"}], reward=reward)

async def main():
    model = art.TrainableModel(name="m", project="p", base_model="b", base_path=sys.argv[1])
    await model.log([await rollout(0.5)])
    await model.register(InMemoryBackend())
    groups = await art.gather_trajectory_groups(
        [art.TrajectoryGroup(rollout(reward) for reward in (0.0, 1.0))]
    )
    await model.train(groups)
    await model.delete_checkpoints()
    await model.close()
    print(model.history()["step"].to_list())

asyncio.run(main())
print(sorted({name.partition(".")[0] for name in sys.modules} & set(BLOCKED)))
"""

NO_ENGINE = """
import art
try:
    art.LocalBackend()
except ImportError as error:
    print(error)
"""


def test_c156_a_laptop_without_an_engine_logs_and_trains(tmp_path: Path) -> None:
    """A whole job runs where no engine is installed, silently; with engines there, none is loaded."""
    assert run(without(*ENGINES) + JOB, tmp_path / "without") == "[0, 0, 1]\n[]\n"
    assert run(f"BLOCKED = {ENGINES!r}\n{JOB}", tmp_path / "with") == "[0, 0, 1]\n[]\n"


def test_c159_a_missing_engine_is_an_import_error_that_names_the_extra() -> None:
    """The error tells what is missing and the command that installs it."""
    message = run(without("torch", "transformers") + NO_ENGINE)
    assert "torch" in message
    assert "transformers" in message
    assert 'pip install "art-rl[local]"' in message


def test_c159_the_error_names_the_needed_version() -> None:
    """The error tells which version of the missing engine is needed."""
    message = run(without("torch") + NO_ENGINE)
    assert "torch>=2.11 (not installed)" in message


def test_c159_the_extra_pins_its_engines() -> None:
    """No resolver can choose an engine that is too old: each has a lower bound, transformers both."""
    pins = {
        name: set(re.findall(r"[<>=]+", bounds))
        for requirement in requires("art-rl") or []
        if re.search(r"extra == ['\"]local['\"]", requirement)
        for name, bounds in [re.split(r"(?=[<>=;])", requirement.partition(";")[0], maxsplit=1)]
    }
    assert set(pins) >= {"torch", "transformers", "peft", "safetensors"}
    assert all(">=" in operators for operators in pins.values())
    assert pins["transformers"] == {">=", "<"}
