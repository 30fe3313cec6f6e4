"""Keys of an endpoint stay where the user put them."""

from __future__ import annotations

import copy
import logging
import traceback
from typing import TYPE_CHECKING, Any

import pydantic
import pytest

import art
from art.testing import InMemoryBackend
from tests.art.factories import group, trajectory

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from art.sinks import SinkContext

pytestmark = pytest.mark.process

KEY = "sk-the-secret-of-this-test"


class Settings(pydantic.BaseModel):
    temperature: float = 1.0


class Listener:
    """A sink that remembers all that it is told, as text."""

    def __init__(self) -> None:
        self.heard = ""

    def open(self, context: SinkContext) -> None:
        self.heard += repr(context)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self.heard += f"{step} {metrics!r}"

    def close(self) -> None:
        pass


class Failing(InMemoryBackend):
    """Serves a port where nobody listens, and fails to train."""

    async def _prepare_backend_for_training(self, model: Any, config: Any) -> tuple[str, str]:
        return "http://127.0.0.1:9/v1", KEY


@pytest.mark.parametrize("whose", ["the user's", "the backend's"])
async def test_c118_a_key_is_in_no_log_traceback_repr_or_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, whose: str
) -> None:
    """With every logger at debug, failing calls and all of the books tell nothing of it."""
    sink = Listener()
    agent = art.TrainableModel(
        name="agent",
        project="tests",
        base_model="none",
        base_path=str(tmp_path),
        config=Settings(),
        report_metrics=[sink],
        inference_api_key=KEY if whose == "the user's" else None,
    )
    backend = Failing(raises=RuntimeError("out of memory"))
    errors: list[BaseException] = []

    async def rollout() -> art.Trajectory:
        client = agent.openai_client().with_options(max_retries=1)
        await client.chat.completions.create(
            model=agent.get_inference_name(), messages=[{"role": "user", "content": "q"}]
        )
        return trajectory(1.0)

    with caplog.at_level(logging.DEBUG):
        await agent.register(backend)
        [failed] = await art.gather_trajectory_groups(
            [art.TrajectoryGroup([rollout(), rollout()])], max_exceptions=2
        )
        for call in (rollout(), agent.train([group(0.0, 1.0)]), agent.log([failed])):
            try:
                await call
            except Exception as error:  # noqa: BLE001 - whatever it is, it must not tell the key
                errors.append(error)
        await agent.close()

    assert agent.inference_api_key == KEY
    assert len(errors) == 2
    assert [len(failed), len(failed.exceptions)] == [0, 2]
    told = {
        "logs": caplog.text + "".join(repr(vars(record)) for record in caplog.records),
        "tracebacks": "".join("".join(traceback.format_exception(error)) for error in errors),
        "repr": repr(agent) + str(agent) + repr(copy.deepcopy(agent)) + repr(agent.openai_client()),
        "sink": sink.heard,
        "history": agent.history().write_json(),
        "group": failed.model_dump_json(),
    }
    for place, text in told.items():
        assert text, place
        assert KEY not in text, place
    await agent.close()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"model.json", "history.jsonl", "0000.parquet"} <= {path.name for path in files}
    for path in files:
        assert KEY.encode() not in path.read_bytes(), path


def test_c118_an_error_of_the_model_itself_does_not_tell_its_key() -> None:
    """A field that is refused is shown, the key beside it is not."""
    fields: dict[str, Any] = {"name": "m", "project": "p", "inference_api_key": KEY}
    for wrong in ({"inference_base_url": 3}, {"unknown": 1}, {"name": ""}):
        with pytest.raises(ValueError) as caught:  # noqa: PT011 - any refusal is meant
            art.Model(**{**fields, **wrong})
        assert KEY not in "".join(traceback.format_exception(caught.value))
    agent = art.Model(**fields)
    with pytest.raises(art.ArtError) as refused:
        agent.openai_client()
    assert KEY not in str(refused.value)
