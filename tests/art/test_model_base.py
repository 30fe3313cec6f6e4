"""Copies of a model, changes of its name after use, and what a failed registration leaves."""

from __future__ import annotations

import copy
import json
import pickle
import threading
import time
from typing import TYPE_CHECKING, Any

import pydantic
import pytest

import art
from art.errors import ConfigurationError, NotRegisteredError, StepMismatchError
from art.testing import InMemoryBackend
from tests.art.factories import group, model

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    HistoryRows = Callable[[art.Model[Any, Any]], list[dict[str, Any]]]


class LockedSink:
    """Cannot be copied, like a sink that holds a connection."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.names: list[str] = []

    def open(self, context: Any) -> None:
        self.names.append(context.name)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        pass

    def close(self) -> None:
        pass


async def trained(
    tmp_path: Path, backend: InMemoryBackend, steps: int = 2
) -> art.TrainableModel[Any, Any]:
    agent = model(tmp_path)
    await agent.register(backend)
    for _ in range(steps):
        await agent.train([group(0.0, 1.0)])
    return agent


async def test_a_renamed_model_does_not_take_its_step_along(tmp_path: Path) -> None:
    """The step belongs to the directory; under another name another account begins."""
    agent = await trained(tmp_path, InMemoryBackend.supporting("inference_name"))

    agent.name = "other"

    assert await agent.get_step() == 0
    assert agent.get_inference_name() == "other"
    agent.name = "agent"
    assert await agent.get_step() == 2
    assert agent.get_inference_name() == "agent@2"


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, art.Model.model_copy])
async def test_a_copy_with_another_name_writes_to_its_own_directory(
    tmp_path: Path,
    duplicate: Callable[[Any], art.TrainableModel[Any, Any]],
    history_rows: HistoryRows,
) -> None:
    """However a model is copied, the two share no books."""
    agent = await trained(tmp_path, InMemoryBackend(), steps=1)

    fork = duplicate(agent).model_copy(update={"name": "fork"})
    await fork.log([group(1.0)])

    assert [row["step"] for row in history_rows(fork)] == [0]
    assert len(history_rows(agent)) == 2


async def test_a_copy_that_is_registered_again_asks_for_itself(tmp_path: Path) -> None:
    """The name that one registration filled in does not outlive the next one."""
    backend = InMemoryBackend.supporting("inference")
    agent = await trained(tmp_path, backend)
    fork = agent.model_copy(deep=True)
    fork.name = "fork"

    await fork.register(backend)

    assert fork.get_inference_name() == "fork"
    assert fork.inference_model_name == "fork"
    assert agent.get_inference_name() == "agent"


async def test_an_inference_name_of_the_users_own_is_kept(tmp_path: Path) -> None:
    """A backend that knows no names leaves the user's."""
    agent = model(tmp_path, inference_model_name="mine")

    await agent.register(InMemoryBackend.supporting("inference"))
    await agent.register(InMemoryBackend.supporting("inference"))

    assert agent.get_inference_name() == "mine"


async def test_a_deep_copy_reports_to_the_same_sink(tmp_path: Path) -> None:
    """A sink object is shared by copies, since it may hold what cannot be copied."""
    sink = LockedSink()
    agent = art.TrainableModel(
        name="a", project="p", base_model="none", base_path=str(tmp_path), report_metrics=[sink]
    )
    fork = copy.deepcopy(agent)
    fork.name = "b"

    for each in (agent, fork):
        await each.log([group(1.0)])
        await each.close()

    assert sink.names == ["a", "b"]


async def test_a_model_in_use_can_be_pickled(tmp_path: Path, history_rows: HistoryRows) -> None:
    """It can be handed to another process, which opens books of its own."""
    agent = model(tmp_path)
    await agent.log([group(1.0)])

    received = pickle.loads(pickle.dumps(agent))
    await received.log([group(1.0)])

    assert len(history_rows(agent)) == 2


def test_threads_that_open_the_books_at_once_share_them(tmp_path: Path) -> None:
    """A model has one set of books, and so one of each sink."""

    class SlowConfig(pydantic.BaseModel):
        @pydantic.model_serializer
        def _serialise(self) -> dict[str, Any]:
            time.sleep(0.05)  # the books are being opened all this while
            return {}

    agent = model(tmp_path, config=SlowConfig())
    books: list[object] = []
    threads = [threading.Thread(target=lambda: books.append(agent._books())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, books))) == 1


async def test_a_copy_with_other_sinks_reports_to_them(tmp_path: Path) -> None:
    """A copy of a model in use does not go on with the sinks of the original."""
    agent = model(tmp_path)
    await agent.log([group(1.0)])
    sink = LockedSink()

    silent = agent.model_copy(update={"report_metrics": [sink]})
    await silent.log([group(1.0)])
    await silent.close()

    assert sink.names == ["agent"]


async def test_the_next_backends_path_replaces_that_of_the_last(tmp_path: Path) -> None:
    """A path that came from a backend was not given by the user, so it does not stick."""

    class Rooted(InMemoryBackend):
        def __init__(self, path: Path) -> None:
            super().__init__()
            self.path = path

        def _default_base_path(self) -> str | None:
            return str(self.path)

    agent = art.TrainableModel(name="a", project="p", base_model="none", report_metrics=[])
    await agent.register(Rooted(tmp_path / "one"))
    await agent.register(Rooted(tmp_path / "two"))

    assert agent.base_path == str(tmp_path / "two")


async def test_a_refused_registration_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    """After a strict registration that failed, training still asks for one, and no file was written."""
    backend = InMemoryBackend.supporting("step")
    backend.checkpoints["tests", "agent"] = {0, 1}
    agent = model(tmp_path)

    with pytest.raises(StepMismatchError):
        await agent.register(backend, on_step_mismatch="error")

    with pytest.raises(NotRegisteredError):
        await agent.train([group(0.0, 1.0)])
    assert not (art.model_dir(agent) / "model.json").exists()


async def test_a_users_training_row_is_not_taken_for_a_step(tmp_path: Path) -> None:
    """Where no train was recorded yet, a row that looks like one, logged by hand, moves nothing."""
    agent = model(tmp_path)
    await agent.register(InMemoryBackend())

    await agent.log(metrics={"loss": 1.0}, split="train", step=100)

    assert await agent.get_step() == 0
    assert (await agent.train([group(0.0, 1.0)])).step == 1
    assert await model(tmp_path).get_step() == 1


def test_upstreams_name_of_the_directory(tmp_path: Path) -> None:
    """`model._get_output_dir()` is where the books are."""
    agent = model(tmp_path)
    assert agent._get_output_dir() == str(tmp_path / "tests" / "models" / "agent")


async def test_a_config_that_is_no_json_does_not_stop_logging(
    tmp_path: Path, history_rows: HistoryRows
) -> None:
    """Only registration needs to store the config; a model that is just logged may have any."""

    class Config(pydantic.BaseModel):
        score: object = print

    agent = model(tmp_path, config=Config())
    await agent.log([group(1.0)])
    assert len(history_rows(agent)) == 1


async def test_a_config_of_plain_values_is_stored(tmp_path: Path) -> None:
    """A dict serves as a config as well as a pydantic model does."""
    agent = model(tmp_path, config={"rank": 8})
    await agent.register(InMemoryBackend())
    assert json.loads((art.model_dir(agent) / "model.json").read_text())["config"] == {"rank": 8}


@pytest.mark.parametrize("split", [None, 5, "", ".."])
async def test_a_split_that_is_no_name_is_refused(tmp_path: Path, split: Any) -> None:
    """The error says that it is the split."""
    with pytest.raises(ConfigurationError, match="split"):
        await model(tmp_path).log([group(1.0)], split=split)
