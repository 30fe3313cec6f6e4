from __future__ import annotations

import asyncio
import copy
import json
import logging
import math
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import pydantic
import pytest

import art
from art.errors import (
    ConfigurationError,
    InvalidBackendError,
    InvalidTrajectoriesError,
    NotRegisteredError,
    UnsupportedByBackend,
)
from art.testing import InMemoryBackend
from tests.art.factories import group, model, trajectory

if TYPE_CHECKING:
    from pathlib import Path

HistoryRows = Callable[[art.Model[Any, Any]], list[dict[str, Any]]]


class Settings(pydantic.BaseModel):
    temperature: float = 1.0


# --- construction ---


def test_a_model_has_upstreams_fields_and_defaults() -> None:
    """The fields that scripts read are there."""
    agent = art.TrainableModel(name="m", project="p", base_model="b")

    assert (agent.base_path, agent.trainable, agent.config) == (".art", True, None)
    assert agent.inference_base_url is None
    assert not art.Model(name="m", project="p").trainable


def test_later_upstream_fields_are_accepted() -> None:
    """`run_name` and `lora_config` construct; LoRA settings reach the internal config."""
    agent = art.TrainableModel(
        name="m", project="p", base_model="b", run_name="r", lora_config={"r": 4}
    )

    assert agent._internal_config == {"peft_args": {"r": 4}}


def test_internal_config_can_be_assigned_after_construction() -> None:
    """The pattern of the public notebooks works."""
    agent = art.TrainableModel(name="m", project="p", base_model="b")
    agent._internal_config = art.dev.InternalModelConfig(peft_args={"r": 2})

    assert agent._internal_config["peft_args"]["r"] == 2


@pytest.mark.parametrize("bad", ["", ".", "..", "x" * 300, "\ud800"])
@pytest.mark.parametrize("field", ["name", "project"])
def test_c081_a_name_that_cannot_be_a_directory_is_refused(field: str, bad: str) -> None:
    """At construction and on assignment, with an error that names the field."""
    names: dict[str, Any] = {"name": "m", "project": "p"}
    with pytest.raises(ConfigurationError, match=field):
        art.Model(**{**names, field: bad})
    agent = art.Model(**names)
    with pytest.raises(ConfigurationError, match=field):
        setattr(agent, field, bad)
    assert getattr(agent, field) == names[field]


def test_an_unknown_field_is_refused() -> None:
    """A misspelt field is an error, not silence."""
    with pytest.raises(ValueError, match="basepath"):
        art.Model(name="m", project="p", basepath="x")


def test_an_unknown_sink_is_refused_at_construction() -> None:
    """A misspelt sink name would lose metrics silently."""
    with pytest.raises(ConfigurationError, match="wandbb"):
        art.Model(name="m", project="p", report_metrics=["wandbb"])


def test_the_api_key_is_not_in_the_repr() -> None:
    """A printed model shows no secret."""
    agent = art.Model(
        name="m", project="p", inference_api_key="sk-secret", inference_base_url="http://x"
    )

    assert "sk-secret" not in repr(agent)


async def test_a_deep_copy_with_another_name_has_books_of_its_own(tmp_path: Path) -> None:
    """The documented pattern `model_copy(deep=True)` then `copy.name = ...` separates the logs."""
    agent = model(tmp_path)
    await agent.register(InMemoryBackend())
    await agent.log([group(1.0)])

    for clone in (agent.model_copy(deep=True), copy.deepcopy(agent)):
        clone.name = "other"
        await clone.log([group(0.0)])
        assert clone.backend() is agent.backend()
        assert art.model_dir(clone).name == "other"

    assert (art.model_dir(agent) / "history.jsonl").read_text().count("\n") == 1


# --- register ---


class Complete:
    async def _train_model(
        self, model: Any, groups: Any, config: Any, dev_config: Any, verbose: bool = False
    ) -> AsyncIterator[dict[str, float]]:
        yield {}

    async def _delete_checkpoint_files(self, model: Any, steps_to_keep: list[int]) -> None: ...


class NoTrain:
    async def _delete_checkpoint_files(self, model: Any, steps_to_keep: list[int]) -> None: ...


class NoDelete:
    async def _train_model(
        self, model: Any, groups: Any, config: Any, dev_config: Any, verbose: bool = False
    ) -> AsyncIterator[dict[str, float]]:
        yield {}


class CoroutineTrain(Complete):
    async def _train_model(  # type: ignore[override]
        self, model: Any, groups: Any, config: Any, dev_config: Any, verbose: bool = False
    ) -> None: ...


class SyncTrain(Complete):
    def _train_model(  # type: ignore[override]
        self, model: Any, groups: Any, config: Any, dev_config: Any, verbose: bool = False
    ) -> list[dict[str, float]]:
        return []


class SyncDelete(Complete):
    def _delete_checkpoint_files(self, model: Any, steps_to_keep: list[int]) -> None: ...  # type: ignore[override]


class ShortTrain(Complete):
    async def _train_model(self, model: Any) -> AsyncIterator[dict[str, float]]:  # type: ignore[override]
        yield {}


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        (NoTrain(), "NoTrain has no method _train_model"),
        (NoDelete(), "NoDelete has no method _delete_checkpoint_files"),
        (CoroutineTrain(), "_train_model is a coroutine function"),
        (SyncTrain(), "_train_model is a synchronous function"),
        (SyncDelete(), "_delete_checkpoint_files is a synchronous function"),
        (ShortTrain(), "cannot take the frontend's arguments"),
        (Complete, "call it: Complete()"),
        (object(), "no method _train_model"),
    ],
)
async def test_register_names_what_a_backend_lacks(
    tmp_path: Path, backend: Any, message: str
) -> None:
    """A backend without one of the two methods, or with a malformed one, is refused at once."""
    agent = model(tmp_path)

    with pytest.raises(InvalidBackendError, match=message.replace("(", r"\(").replace(")", r"\)")):
        await agent.register(backend)

    assert not art.model_dir(agent).exists()
    with pytest.raises(NotRegisteredError):
        agent.backend()


async def test_register_writes_the_model_file(tmp_path: Path) -> None:
    """model.json tells what the model is, and nothing secret."""
    agent = model(tmp_path, config=Settings())
    await agent.register(InMemoryBackend.supporting("inference"))

    text = (art.model_dir(agent) / "model.json").read_text()
    described = json.loads(text)
    assert described["base_model"] == "none"
    assert described["config"] == {"temperature": 1.0}
    assert "api_key" not in text


async def test_register_fills_in_the_endpoint(tmp_path: Path) -> None:
    """After register the inference fields are there, and the name is pinned to the step."""
    agent = model(tmp_path)
    with pytest.raises(NotRegisteredError, match="register"):
        agent.openai_client()

    await agent.register(InMemoryBackend.supporting("inference", "inference_name"))

    assert agent.inference_base_url == "http://127.0.0.1:9/v1"
    assert agent.inference_api_key == "in-memory"
    assert agent.get_inference_name() == "agent@0"
    assert agent.get_inference_name(step=7) == "agent@7"
    await agent.train([group(0.0, 1.0)])
    assert agent.get_inference_name() == "agent@1"
    assert agent.inference_model_name == "agent@1"


async def test_a_backend_without_inference_leaves_the_users_endpoint(tmp_path: Path) -> None:
    """The fields that a user set are not touched by a backend that serves nothing."""
    agent = model(tmp_path, inference_base_url="http://mine/v1", inference_api_key="k")
    await agent.register(InMemoryBackend())

    assert agent.inference_base_url == "http://mine/v1"
    assert agent.get_inference_name() == "agent"
    assert agent.get_inference_name(step=2) == "agent@2"


async def test_the_backends_path_stands_in_for_a_base_path_that_the_user_did_not_give(
    tmp_path: Path,
) -> None:
    """An explicit base path is never changed; without one the backend's explicit path is used."""

    class WithPath(InMemoryBackend):
        def _default_base_path(self) -> str | None:
            return str(tmp_path / "backend")

    implicit = art.TrainableModel(name="m", project="p", base_model="b", report_metrics=[])
    explicit = model(tmp_path / "user")
    await implicit.register(WithPath())
    await explicit.register(WithPath())

    assert implicit.base_path == str(tmp_path / "backend")
    assert explicit.base_path == str(tmp_path / "user")


async def test_a_config_that_is_no_json_is_refused(tmp_path: Path) -> None:
    """Register says that the config cannot be stored, before anything is written."""

    class Bad(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
        thing: object

    agent = model(tmp_path, config=Bad(thing=object()))

    with pytest.raises(ValueError, match="config of model 'agent'"):
        await agent.register(InMemoryBackend())


async def test_an_object_that_is_attached_by_hand_is_asked_for_the_step(
    tmp_path: Path, history_rows: HistoryRows
) -> None:
    """`model._backend = obj` with `_get_step` goes on working, as tests in the wild use it."""

    class Attached:
        async def _get_step(self, model: Any) -> int:
            return 7

    agent = model(tmp_path)
    agent._backend = Attached()

    assert await agent.get_step() == 7
    await agent.log([group(1.0)])
    assert history_rows(agent)[0]["step"] == 7


# --- clients ---


async def test_openai_clients_belong_to_their_event_loop() -> None:
    """One client a loop: the same inside one loop, another one in the next."""
    agent = art.Model(
        name="m", project="p", inference_base_url="http://127.0.0.1:9/v1", inference_api_key="k"
    )
    here = agent.openai_client()

    async def ask() -> Any:
        client = agent.openai_client()
        assert client is agent.openai_client()
        await agent.close()
        return client

    elsewhere = await asyncio.to_thread(asyncio.run, ask())
    assert agent.openai_client() is here
    assert elsewhere is not here
    await agent.close()


def test_litellm_parameters() -> None:
    """Litellm gets the endpoint, with the prefix that a served model needs."""
    agent = art.TrainableModel(name="m", project="p", base_model="b")
    agent.inference_base_url, agent.inference_api_key = "http://x/v1", "k"

    assert agent.litellm_completion_params(step=3) == {
        "model": "hosted_vllm/m@3",
        "base_url": "http://x/v1",
        "api_key": "k",
        "temperature": 1,
    }


# --- log ---


async def test_log_takes_groups_a_flat_list_or_metrics_alone(
    tmp_path: Path, history_rows: HistoryRows
) -> None:
    """All upstream forms of log work without a backend, at step 0 and split "val"."""
    agent = art.Model(name="m", project="p", base_path=str(tmp_path), report_metrics=[])

    await agent.log([group(0.0, 1.0)])
    flat_run: list[art.Trajectory | BaseException] = [trajectory(1.0), ValueError("lost")]
    await agent.log(flat_run, split="test")
    await agent.log(metrics={"accuracy": 0.5}, step=3)

    grouped, flat, alone = history_rows(agent)
    assert (grouped["step"], grouped["val/reward"]) == (0, 0.5)
    assert (flat["test/reward"], flat["test/exception_rate"]) == (1.0, 0.5)
    assert (alone["step"], alone["val/accuracy"]) == (3, 0.5)
    assert not (art.model_dir(agent) / "trajectories" / "val" / "0003.parquet").exists()


async def test_log_of_nothing_writes_nothing_and_warns(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """`log([])` is most likely a mistake; it leaves no row that hides it."""
    agent = model(tmp_path)

    with caplog.at_level(logging.WARNING, "art"):
        await agent.log([])

    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert not art.model_dir(agent).exists()


async def test_given_metrics_win_over_aggregates(tmp_path: Path, history_rows: HistoryRows) -> None:
    """A value passed by the user replaces the aggregate of that name."""
    agent = model(tmp_path)

    await agent.log([group(0.0, 1.0)], metrics={"reward": 9.0, "new": True})

    assert history_rows(agent)[0]["val/reward"] == 9.0
    assert history_rows(agent)[0]["val/new"] == 1.0


async def test_a_metric_that_is_no_number_writes_nothing(tmp_path: Path) -> None:
    """The error names the key, and neither a row nor a trajectory file is left."""
    agent = model(tmp_path)

    with pytest.raises(TypeError, match="note"):
        await agent.log([group(1.0)], metrics={"note": "good"})

    assert not (art.model_dir(agent) / "trajectories").exists()
    assert not (art.model_dir(agent) / "history.jsonl").exists()


@pytest.mark.parametrize("bad", [-1, 1.5, "3"])
async def test_a_step_that_is_no_step_is_refused(tmp_path: Path, bad: Any) -> None:
    """Steps are whole numbers from 0 on."""
    with pytest.raises(ConfigurationError, match="step"):
        await model(tmp_path).log([group(1.0)], step=bad)


async def test_a_split_with_a_slash_stays_inside_the_model_directory(tmp_path: Path) -> None:
    """A split is a name, not a path."""
    agent = model(tmp_path)

    await agent.log([group(1.0)], split="../val")

    files = list((art.model_dir(agent) / "trajectories").rglob("*.parquet"))
    assert [file.parent.name for file in files] == ["..%2Fval"]
    with pytest.raises(ConfigurationError, match="split"):
        await agent.log([group(1.0)], split="..")


async def test_logging_a_step_twice_adds(tmp_path: Path, history_rows: HistoryRows) -> None:
    """The second log of a split and step neither replaces the file nor the row."""
    agent = model(tmp_path)

    await agent.log([group(1.0)], step=2)
    await agent.log([group(0.0, 0.0, 0.0)], step=2)

    import pyarrow.parquet as pq

    table = pq.read_table(art.model_dir(agent) / "trajectories" / "val" / "0002.parquet")
    assert table.column("log_index").to_pylist() == [0, 1, 1, 1]
    assert len(history_rows(agent)) == 2


async def test_a_users_log_never_moves_the_step(tmp_path: Path) -> None:
    """`log(step=100)` is an entry in the books, not a train."""
    agent = model(tmp_path)
    await agent.register(InMemoryBackend())
    await agent.train([group(0.0, 1.0)])

    await agent.log([group(1.0)], split="train", step=100)

    assert await agent.get_step() == 1
    assert (await agent.train([group(0.0, 1.0)])).step == 2


async def test_log_without_a_step_uses_the_current_one(
    tmp_path: Path, history_rows: HistoryRows
) -> None:
    """After a train the default step of log is the new one, also in a fresh process."""
    agent = model(tmp_path)
    await agent.register(InMemoryBackend())
    await agent.train([group(0.0, 1.0)])

    await agent.log([group(1.0)])
    await model(tmp_path).log([group(1.0)])

    assert [row["step"] for row in history_rows(agent)[-2:]] == [1, 1]


async def test_log_asks_no_backend_when_the_step_is_known(tmp_path: Path) -> None:
    """Rollout logging does not depend on the backend being reachable."""

    class Counting(InMemoryBackend):
        asked = 0

        async def _get_step(self, model: Any) -> int:
            self.asked += 1
            return 0

    backend = Counting()
    agent = model(tmp_path)
    await agent.register(backend)
    asked = backend.asked

    await agent.log([group(1.0)])

    assert backend.asked == asked


async def test_all_failed_rollouts_are_logged(tmp_path: Path, history_rows: HistoryRows) -> None:
    """A step in which every rollout raised has a row and a file, and no reward."""
    agent = model(tmp_path)

    await agent.log([art.TrajectoryGroup([ValueError("a"), KeyError("b")])])

    (row,) = history_rows(agent)
    assert row["val/exception_rate"] == 1.0
    assert "val/reward" not in row
    assert (art.model_dir(agent) / "trajectories" / "val" / "0000.parquet").exists()


async def test_c039_a_reward_of_none_is_refused_by_name(tmp_path: Path) -> None:
    """A score that is missing is an error that names the trajectory, never a silent 0.0."""
    unscored = trajectory(1.0)
    unscored.reward = None  # type: ignore[assignment]

    with pytest.raises(InvalidTrajectoriesError, match="group 0, trajectory 1: reward is None"):
        await model(tmp_path).log([art.TrajectoryGroup([trajectory(1.0), unscored])])


async def test_history_is_a_frame_with_every_key(tmp_path: Path) -> None:
    """`model.history()` has a float column for each key, whenever it first appeared."""
    agent = model(tmp_path)
    for step in range(3):
        await agent.log(metrics={"loss": 1}, split="train", step=step)
    await agent.log(metrics={"reward": 0.5}, step=2)

    frame = agent.history()

    assert frame["train/loss"].to_list() == [1.0, 1.0, 1.0, None]
    assert frame["val/reward"].to_list() == [None, None, None, 0.5]
    assert frame["step"].to_list() == [0, 1, 2, 2]


# --- the user's state ---


def test_state_is_kept_and_merged(tmp_path: Path) -> None:
    """The user's state survives, and merging goes into nested objects."""
    agent = model(tmp_path)
    assert agent.read_state() is None

    agent.overwrite_state({"offset": 1, "seen": {"a": 1}})
    merged = agent.merge_state({"seen": {"b": 2}})

    assert merged == {"offset": 1, "seen": {"a": 1, "b": 2}}
    assert model(tmp_path).read_state() == merged


# --- optional work ---


async def test_sft_on_a_backend_without_it_is_refused(tmp_path: Path) -> None:
    """A capability that a backend lacks is an error that names it."""
    agent = model(tmp_path)
    await agent.register(InMemoryBackend())

    with pytest.raises(UnsupportedByBackend, match="InMemoryBackend has no supervised fine-tuning"):
        await agent.train_sft([trajectory(1.0)])


async def test_sft_keeps_the_same_books(tmp_path: Path, history_rows: HistoryRows) -> None:
    """A fine-tuning call advances the step and writes its metrics row."""

    class WithSFT(InMemoryBackend):
        async def _train_sft(self, *args: Any, **kwargs: Any) -> AsyncIterator[dict[str, float]]:
            yield {"loss": 2.0}
            yield {"loss": 1.0}

    agent = model(tmp_path)
    await agent.register(WithSFT())

    assert (await agent.train_sft([trajectory(1.0)])).step == 1
    assert history_rows(agent)[0]["train/loss"] == 1.5


async def test_wandb_run_is_none_when_wandb_is_off(tmp_path: Path) -> None:
    """`model._get_wandb_run()` is None without wandb."""
    assert model(tmp_path)._get_wandb_run() is None


async def test_close_can_be_repeated(tmp_path: Path) -> None:
    """Closing twice, or without ever logging, is fine."""
    agent = model(tmp_path)
    await agent.close()
    await agent.log([group(1.0)])
    await agent.close()
    await agent.close()


async def test_nan_rewards_do_not_reach_the_history(
    tmp_path: Path, history_rows: HistoryRows
) -> None:
    """The history stays strict JSON, and the count tells of what is missing."""
    agent = model(tmp_path)

    await agent.log([group(math.nan, 1.0)])

    assert history_rows(agent)[0]["val/num_nonfinite"] == 1


async def test_numbers_in_the_place_of_rollouts_are_pointed_to_metrics(tmp_path: Path) -> None:
    """The natural first guess `log({...})` says where numbers go."""
    with pytest.raises(InvalidTrajectoriesError, match=r"metrics="):
        await model(tmp_path).log({"accuracy": 0.5})  # type: ignore[arg-type]


async def test_a_backend_without_inference_is_named_when_a_client_is_asked(tmp_path: Path) -> None:
    """A registered model is not told to register."""
    agent = model(tmp_path)
    await agent.register(InMemoryBackend())

    with pytest.raises(NotRegisteredError, match="InMemoryBackend serves no inference"):
        agent.openai_client()


async def test_the_backends_path_holds_for_a_plain_model_too(tmp_path: Path) -> None:
    """A comparison model logs beside the trained one."""

    class WithPath(InMemoryBackend):
        def _default_base_path(self) -> str | None:
            return str(tmp_path)

    plain = art.Model(name="m", project="p", report_metrics=[])
    await plain.register(WithPath())

    assert plain.base_path == str(tmp_path)
