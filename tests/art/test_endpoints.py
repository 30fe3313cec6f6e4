from __future__ import annotations

import asyncio
import gc
import socket
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest

import art
from art.endpoints import inference_failure, model_for, remember_endpoint
from art.errors import InferenceError
from art.testing import InMemoryBackend
from tests.art.factories import model, trajectory

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from pathlib import Path

    from art import dev
    from art.backend import AnyModel, AnyTrainableModel


class MortalBackend(InMemoryBackend):
    """Names an endpoint where nothing listens, and tells so when `failure` is set."""

    failure: str | None = None

    async def _prepare_backend_for_training(
        self, model: AnyTrainableModel, config: dev.OpenAIServerConfig | None
    ) -> tuple[str, str]:
        return self.endpoint

    def _inference_failure(self, model: AnyModel) -> str | None:
        return self.failure


@pytest.fixture
def dead_url() -> str:
    """A URL at which nothing listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{listener.getsockname()[1]}/v1"


async def ask(url: str) -> None:
    """Ask an endpoint through the OpenAI client."""
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        await client.chat.completions.create(model="m", messages=[])


def connection_error(url: str) -> httpx.ConnectError:
    return httpx.ConnectError("refused", request=httpx.Request("POST", url))


async def test_the_model_of_an_openai_connection_error_is_found(
    tmp_path: Path, dead_url: str
) -> None:
    """The error's request tells which endpoint it was for, also from behind another error."""
    agent = model(tmp_path)
    remember_endpoint(f"{dead_url}/", agent)
    with pytest.raises(openai.APIConnectionError) as caught:
        await ask(dead_url)
    assert model_for(caught.value) is agent
    wrapped = RuntimeError("rollout failed")
    wrapped.__context__ = caught.value
    assert model_for(wrapped) is agent
    assert model_for(ExceptionGroup("several", [ValueError(), wrapped])) is agent


def test_only_errors_of_a_registered_endpoint_count(tmp_path: Path) -> None:
    """A longer port, another host, an error without a request and an unrelated error belong to no model."""
    agent = model(tmp_path)
    remember_endpoint("http://127.0.0.1:80/v1", agent)
    assert model_for(connection_error("http://127.0.0.1:80/v1/chat/completions")) is agent
    assert model_for(connection_error("http://127.0.0.1:8000/v1/chat/completions")) is None
    assert model_for(connection_error("http://127.0.0.1:80/v10")) is None
    assert model_for(connection_error("https://127.0.0.1/v1/chat/completions")) is None
    assert model_for(httpx.ConnectError("refused")) is None
    assert model_for(ValueError("unrelated")) is None


def test_the_longest_matching_endpoint_wins(tmp_path: Path) -> None:
    """Two endpoints on one host are told apart by their paths."""
    outer, inner = model(tmp_path, "outer"), model(tmp_path, "inner")
    remember_endpoint("http://gateway", outer)
    remember_endpoint("http://gateway/inner", inner)
    assert model_for(connection_error("http://gateway/inner/v1")) is inner
    assert model_for(connection_error("http://gateway/v1")) is outer


def test_errors_that_cause_each_other_end_the_search(tmp_path: Path) -> None:
    """A circle in the chain of causes is walked once."""
    first, second = ValueError(), ValueError()
    first.__cause__, second.__cause__ = second, first
    assert model_for(first) is None


def test_an_endpoint_is_forgotten_with_its_model(tmp_path: Path) -> None:
    """The registry does not keep a model alive."""
    agent = model(tmp_path)
    remember_endpoint("http://forgotten/v1", agent)
    del agent
    gc.collect()
    assert model_for(connection_error("http://forgotten/v1")) is None


async def registered(tmp_path: Path, url: str, failure: str | None) -> art.TrainableModel[Any, Any]:
    backend = MortalBackend(endpoint=(url, "key"))
    agent = model(tmp_path)
    await agent.register(backend)
    backend.failure = failure
    return agent


@pytest.mark.parametrize("flat", [True, False])
async def test_a_gather_fails_fast_when_the_inference_endpoint_is_gone(
    tmp_path: Path, dead_url: str, flat: bool
) -> None:
    """All other rollouts are stopped, and the error carries what the backend knows of the end."""
    agent = await registered(tmp_path, dead_url, "exit status 1; log: CUDA out of memory")
    stopped = False

    async def lasting() -> art.Trajectory:
        nonlocal stopped
        try:
            await asyncio.Event().wait()
        finally:
            stopped = True
        return trajectory(0)

    async def rollout() -> art.Trajectory:
        await ask(dead_url)
        return trajectory(1)

    async def whole_group() -> art.TrajectoryGroup:
        return await art.TrajectoryGroup([rollout()])

    gathering: Awaitable[Any]
    if flat:
        gathering = art.gather_trajectories([lasting(), rollout()], max_exceptions=10)
    else:
        groups: list[Any] = [art.TrajectoryGroup([lasting()]), whole_group()]
        gathering = art.gather_trajectory_groups(groups, max_exceptions=10)
    with pytest.raises(InferenceError, match="CUDA out of memory") as caught:
        await gathering
    assert stopped
    assert agent.name in str(caught.value)
    assert isinstance(caught.value.__cause__, openai.APIConnectionError)


async def test_a_connection_error_of_a_living_endpoint_is_an_ordinary_failure(
    tmp_path: Path, dead_url: str
) -> None:
    """As long as the backend reports no failure, the rollout's own exception is kept."""
    agent = await registered(tmp_path, dead_url, None)

    async def rollout() -> art.Trajectory:
        await ask(dead_url)
        return trajectory(1)

    [outcome] = await art.gather_trajectories([rollout()], max_exceptions=1)
    assert isinstance(outcome, openai.APIConnectionError)
    assert inference_failure(outcome) is None
    assert model_for(outcome) is agent
