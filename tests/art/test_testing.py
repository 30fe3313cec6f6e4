from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from art.backend import Capabilities, check_backend
from art.errors import ConfigurationError
from art.testing import InMemoryBackend
from tests.art.factories import group, model

if TYPE_CHECKING:
    from pathlib import Path


def test_the_plain_backend_has_the_two_methods_only() -> None:
    """By default no optional capability is there, so that the frontend's own account is what counts."""
    backend = InMemoryBackend()
    check_backend(backend)

    assert Capabilities.of(backend) == Capabilities()


def test_capabilities_can_be_switched_on_one_by_one() -> None:
    """Each combination has just the methods that were asked for."""
    capabilities = Capabilities.of(InMemoryBackend.supporting("step", "close"))

    assert capabilities.step is not None
    assert capabilities.close is not None
    assert capabilities.listing is None
    assert capabilities.inference is None


def test_an_unknown_capability_is_named() -> None:
    """A misspelt capability lists the known ones."""
    with pytest.raises(ConfigurationError, match=r"'stepp'.*step"):
        InMemoryBackend.supporting("stepp")  # type: ignore[arg-type]


async def test_calls_are_kept_as_they_were(tmp_path: Path) -> None:
    """A later change of the groups does not show in what the backend was asked."""
    backend = InMemoryBackend()
    agent = model(tmp_path)
    await agent.register(backend)
    batch = group(0.0, 1.0)

    await agent.train([batch])
    batch.trajectories[0].reward = 9.0

    assert backend.calls[0].groups[0].trajectories[0].reward == 0.0


async def test_models_of_two_projects_do_not_meet(tmp_path: Path) -> None:
    """Checkpoints are kept by project and name."""
    backend = InMemoryBackend()
    one, two = model(tmp_path), model(tmp_path)
    two.project = "other"
    for agent in (one, two):
        await agent.register(backend)
    await one.train([group(0.0, 1.0)])

    assert backend.checkpoints == {("tests", "agent"): {0, 1}}


async def test_an_empty_keep_list_is_refused(tmp_path: Path) -> None:
    """Deleting everything is never what was meant (clause D2)."""
    with pytest.raises(ConfigurationError, match="empty"):
        await InMemoryBackend()._delete_checkpoint_files(model(tmp_path), [])
