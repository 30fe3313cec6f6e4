from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import art

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(autouse=True)
def no_wandb_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reaches wandb by accident, whatever the developer's environment says."""
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def history_rows() -> Callable[[art.Model[Any, Any]], list[dict[str, Any]]]:
    """The rows of a model's history as plain JSON, read without the project's own reader."""

    def read(model: art.Model[Any, Any]) -> list[dict[str, Any]]:
        path = art.model_dir(model) / "history.jsonl"
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text().splitlines()]

    return read
