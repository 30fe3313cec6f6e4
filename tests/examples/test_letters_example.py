from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from art_local import demo, letters

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "letters.py"


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    """The example's names; its job runs only as a script."""
    return runpy.run_path(str(EXAMPLE))


@pytest.mark.parametrize(
    "name", ["BASE_MODEL", "LETTERS", "TRAIN_PHRASINGS", "VAL_PHRASINGS", "MAX_TOKENS"]
)
def test_example_and_package_have_the_same_task(name: str, example: dict[str, Any]) -> None:
    """The example stands alone, and is the same task as the packaged one."""
    assert example[name] == getattr(letters, name)


@pytest.mark.parametrize("name", ["STEPS", "LEARNING_RATE", "TRAIN_SAMPLES", "VAL_SAMPLES"])
def test_example_and_demo_have_the_same_recipe(name: str, example: dict[str, Any]) -> None:
    """What was checked to work for the demo is what the example shows."""
    assert example[name] == getattr(demo, name)


@pytest.mark.parametrize("text", ["a", "b", " a", "", None])
def test_example_and_package_have_the_same_reward(
    text: str | None, example: dict[str, Any]
) -> None:
    """Both score an answer alike."""
    assert example["reward"]("a", text) == letters.reward("a", text)


def test_example_is_short_and_names_its_backend_once() -> None:
    """It can be read in one go, and another backend is a change of one line and its import."""
    lines = EXAMPLE.read_text().splitlines()
    assert len(lines) < 120
    assert [line.strip() for line in lines if "LocalBackend" in line] == [
        "from art.local import LocalBackend",
        "backend = LocalBackend()",
    ]
    assert not any("art_local" in line for line in lines)
