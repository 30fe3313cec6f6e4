"""Backends that break the contract: what the frontend makes of them, and what stays whole."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import pytest

import art
from art.errors import ConfigurationError, InvalidBackendError, LogError
from art.testing import InMemoryBackend
from tests.art.factories import group, model

if TYPE_CHECKING:
    from pathlib import Path

HistoryRows = Callable[[art.Model[Any, Any]], list[dict[str, Any]]]


async def registered(tmp_path: Path, backend: InMemoryBackend) -> art.TrainableModel[Any, Any]:
    agent = model(tmp_path)
    await agent.register(backend)
    return agent


class Unreadable:
    """Says that it is a number, and is none."""

    def __float__(self) -> float:
        raise RuntimeError("lost on the device")


@pytest.mark.parametrize("event", [1.0, None, [("loss", 1.0)], {"bad": Unreadable()}, {5: 1.0}])
async def test_an_event_that_cannot_be_read_does_not_lose_a_finished_train(
    tmp_path: Path, event: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever a backend yields, the step counts and one warning tells what was left out."""
    agent = await registered(tmp_path, InMemoryBackend(events=[event, {"loss": 2.0}]))

    with caplog.at_level(logging.WARNING, "art"):
        result = await agent.train([group(0.0, 1.0)])

    assert result.step == 1
    names = set(result.metrics) - {"num_groups_submitted", "num_groups_trainable", "learning_rate"}
    assert names == {"loss"}
    assert sum("T3" in record.message for record in caplog.records) == 1


async def test_an_iterator_class_with_aclose_is_closed(tmp_path: Path) -> None:
    """A backend's stream need not be a generator to be told that its train is over."""

    class Stream:
        is_closed = False

        def __aiter__(self) -> Stream:
            return self

        async def __anext__(self) -> dict[str, float]:
            raise ValueError("mid-stream")

        async def aclose(self) -> None:
            self.is_closed = True

    stream = Stream()

    class Streaming(InMemoryBackend):
        def _train_model(self, *args: Any, **kwargs: Any) -> AsyncIterator[dict[str, float]]:
            return stream

    agent = await registered(tmp_path, Streaming())
    with pytest.raises(ValueError, match="mid-stream"):
        await agent.train([group(0.0, 1.0)])
    assert stream.is_closed


@pytest.mark.parametrize("found", [None, -1, "3", 2.0, True, math.nan])
async def test_a_step_that_is_none_is_the_backends_fault(tmp_path: Path, found: Any) -> None:
    """What `_get_step` returns is checked before any book follows it."""

    class Lost(InMemoryBackend):
        async def _get_step(self, model: Any) -> Any:
            return found

    agent = model(tmp_path)
    with pytest.raises(InvalidBackendError, match="_get_step returned"):
        await agent.register(Lost())
    assert not (art.model_dir(agent) / "steps.jsonl").exists()

    agent._backend = Lost()
    with pytest.raises(InvalidBackendError, match="_get_step returned"):
        await agent.log([group(1.0)])


@pytest.mark.parametrize("listed", [None, ["a"], [-1, 0], [1.0]])
async def test_a_listing_that_is_none_deletes_nothing(tmp_path: Path, listed: Any) -> None:
    """No checkpoint is deleted by a list that cannot be read."""

    class Confused(InMemoryBackend):
        async def _list_checkpoint_steps(self, model: Any) -> Any:
            return listed

    backend = Confused()
    agent = await registered(tmp_path, backend)
    await agent.train([group(0.0, 1.0)])
    with pytest.raises(InvalidBackendError, match="_list_checkpoint_steps returned"):
        await agent.delete_checkpoints(None)
    assert backend.checkpoints["tests", "agent"] == {0, 1}


@pytest.mark.parametrize("power", [math.nan, "steep"])
async def test_an_option_that_cannot_work_is_refused_before_anything_is_written(
    tmp_path: Path, power: Any, history_rows: HistoryRows
) -> None:
    """Trying again with a good option does not log the rollouts twice."""
    agent = await registered(tmp_path, InMemoryBackend())
    with pytest.raises((ConfigurationError, TypeError)):
        await agent.train(
            [group(0.0, 1.0)],
            _config={"num_trajectories_learning_rate_multiplier_power": power},
        )
    assert history_rows(agent) == []


@pytest.mark.parametrize("rate", [math.nan, math.inf])
def test_a_learning_rate_is_finite(rate: float) -> None:
    """A rate that would turn every weight into NaN is refused where it is written down."""
    with pytest.raises(ValueError, match="finite"):
        art.TrainConfig(learning_rate=rate)


async def test_rollouts_ask_the_new_policy_even_if_its_row_was_not_written(tmp_path: Path) -> None:
    """The backend serves N+1 once its stream has ended; a full disk does not send rollouts back to N."""
    path = tmp_path / "tests" / "models" / "agent" / "steps.jsonl"

    class Blocking(type(InMemoryBackend.supporting("inference_name", "step"))):  # type: ignore[misc]  # made at run time
        async def _train_model(self, *args: Any, **kwargs: Any) -> AsyncIterator[dict[str, float]]:
            async for event in super()._train_model(*args, **kwargs):
                yield event
            path.mkdir()  # nothing can be appended to a directory

    agent = await registered(tmp_path, Blocking())
    with pytest.raises(LogError):
        await agent.train([group(0.0, 1.0)])

    assert agent.get_inference_name() == "agent@1"


async def test_registering_during_a_train_waits_for_its_line_in_the_books(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Between the backend's commit and the books' line there is no mismatch to warn of."""
    committed, may_end = asyncio.Event(), asyncio.Event()

    class Slow(type(InMemoryBackend.supporting("step"))):  # type: ignore[misc]  # a class made at run time
        async def _train_model(self, *args: Any, **kwargs: Any) -> AsyncIterator[dict[str, float]]:
            async for event in super()._train_model(*args, **kwargs):
                yield event
            committed.set()
            await may_end.wait()

    backend = Slow()
    agent = await registered(tmp_path, backend)
    training = asyncio.create_task(agent.train([group(0.0, 1.0)]))
    await committed.wait()
    second = model(tmp_path)
    with caplog.at_level(logging.WARNING, "art"):
        registration = asyncio.create_task(second.register(backend))
        await asyncio.sleep(0.05)
        may_end.set()
        await asyncio.gather(training, registration)

    lines = (art.model_dir(agent) / "steps.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1]
    assert caplog.records == []
    assert await second.get_step() == 1


async def test_an_unknown_answer_to_a_mismatch_is_refused(tmp_path: Path) -> None:
    """A misspelt "error" must not mean "warn"."""
    with pytest.raises(ConfigurationError, match="on_step_mismatch"):
        await model(tmp_path).register(InMemoryBackend(), on_step_mismatch="raise")  # type: ignore[arg-type]  # the point


async def test_a_second_pass_does_not_change_whose_rollouts_they_are(
    tmp_path: Path, history_rows: HistoryRows
) -> None:
    """Trained on twice, the groups still credit the policy that made them."""
    backend = InMemoryBackend()
    agent = await registered(tmp_path, backend)
    groups = [group(0.0, 1.0)]
    for _ in range(2):
        result = await backend.train(agent, groups)

    await agent.log(groups, metrics=result.metrics, step=result.step, split="train")

    assert history_rows(agent)[-1]["policy_step"] == 0
