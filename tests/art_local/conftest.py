from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.art_local.tiny import make_tiny_adapter, make_tiny_model
from tests.art_local.vllm import vllm_server  # noqa: F401 - a fixture

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a tiny random model."""
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def tiny_adapter_dir(
    tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path
) -> Callable[..., Path]:
    """Makes directories of random adapters for the tiny model; one per set of arguments."""
    made: dict[str, Path] = {}

    def make(seed: int = 1, **lora: Any) -> Path:
        key = repr((seed, sorted(lora.items())))
        if key not in made:
            made[key] = make_tiny_adapter(
                tmp_path_factory.mktemp("adapter"), tiny_model_dir, seed=seed, **lora
            )
        return made[key]

    return make
