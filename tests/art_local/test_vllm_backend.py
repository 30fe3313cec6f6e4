"""LocalBackend with real vLLM: one server for the whole session, a gateway for each model."""

from __future__ import annotations

import asyncio
import math
import os
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

import art
from art.errors import ConfigurationError, InferenceError
from art_local import LocalBackend, VllmServer
from art_local.base_model import resolve_base_model
from art_local.letters import BASE_MODEL, TRAIN_PHRASINGS, rollout, scenarios
from tests.art_local.test_server import plain_logprobs, plain_model
from tests.art_local.vllm import engine_core, group_of

pytestmark = [
    pytest.mark.local,
    pytest.mark.vllm,
    pytest.mark.xdist_group("vllm"),
    pytest.mark.timeout(1800),
]

LEARNING_RATE = 2e-3
QUESTION: art.Messages = [{"role": "user", "content": "Reply with c."}]

Model = art.TrainableModel[Any, Any]


@pytest.fixture
async def backend(vllm_server: VllmServer) -> AsyncIterator[LocalBackend]:
    """A backend in front of the session's server."""
    async with LocalBackend(inference=vllm_server) as backend:
        yield backend


@pytest.fixture
async def model(tmp_path: Path, backend: LocalBackend) -> AsyncIterator[Model]:
    """A model that is registered with it."""
    model = make_model(tmp_path)
    await model.register(backend)
    yield model
    await model.close()


def make_model(base_path: Path, name: str = "agent") -> Model:
    return art.TrainableModel(
        name=name,
        project="tests",
        base_model=BASE_MODEL,
        base_path=str(base_path),
        report_metrics=[],
    )


async def gather(model: Model, samples: int = 8) -> list[art.TrajectoryGroup]:
    return await art.gather_trajectory_groups(
        (
            art.TrajectoryGroup(rollout(model, scenario) for _ in range(samples))
            for scenario in scenarios(TRAIN_PHRASINGS)
        ),
        pbar_desc=None,
    )


async def train(model: Model, groups: list[art.TrajectoryGroup] | None = None) -> art.TrainResult:
    config = art.TrainConfig(learning_rate=LEARNING_RATE)
    return await model.train(groups or await gather(model), config)


async def ask(model: Model, name: str | None = None, **options: Any) -> Any:
    completion = await model.openai_client().chat.completions.create(
        model=name or model.get_inference_name(),
        messages=QUESTION,
        **{"max_tokens": 4, "temperature": 1.0, **options},
    )
    return completion.choices[0]


async def first_logprobs(model: Model, name: str) -> dict[str, float]:
    """The log probabilities of the likeliest first tokens of an answer."""
    choice = await ask(model, name, max_tokens=1, temperature=0.0, top_logprobs=5, logprobs=True)
    return {entry.token: entry.logprob for entry in choice.logprobs.content[0].top_logprobs}


async def test_c149_ten_steps_learn_and_each_is_served_by_its_own_adapter(model: Model) -> None:
    """The reward rises over ten steps, and what a step's name answers with is never the step before."""
    rewards, served = [], [await first_logprobs(model, "agent@0")]
    for step in range(1, 11):
        groups = await gather(model)
        assert {choice.checkpoint_step for choice in choices(groups)} == {step - 1}
        rewards.append(sum(t.reward for group in groups for t in group) / (8 * len(groups)))
        result = await train(model, groups)
        # Sampler and trainer agree: the ratio of their probabilities is 1 on a fresh batch.
        assert abs(math.log(result.metrics["ratio_min"])) <= 0.01
        assert abs(math.log(result.metrics["ratio_max"])) <= 0.01
        assert result.metrics["mismatch_kl"] <= 0.002
        served.append(await first_logprobs(model, f"agent@{step}"))
        assert await first_logprobs(model, "agent") == served[-1] != served[-2]
    assert sum(rewards[-3:]) / 3 > rewards[0] + 0.15
    # The earlier ones are served still, as they were.
    assert [await first_logprobs(model, f"agent@{step}") for step in range(11)] == served


async def ask_for_ever(model: Model) -> None:
    """Ask until an error comes: a server may live on for a moment after its engine."""
    client = model.openai_client().with_options(max_retries=0)
    while True:
        await client.chat.completions.create(model="agent", messages=QUESTION, max_tokens=1)


def choices(groups: list[art.TrajectoryGroup]) -> list[Any]:
    return [t.messages_and_choices[-1] for group in groups for t in group]


async def test_log_probabilities_are_those_of_the_model_in_training(model: Model) -> None:
    """Over sampled tokens vLLM's log probabilities differ from transformers' by 0.01 at most, 0.002 in the mean."""
    await train(model)
    found = choices(await gather(model))
    trained = plain_model(resolve_base_model(BASE_MODEL), art.checkpoints_dir(model) / "0001")
    differences = [
        abs(entry.logprob - expected)
        for choice in found
        for entry, expected in zip(
            choice.logprobs.content,
            plain_logprobs(trained, choice.model_dump()),
            strict=True,
        )
    ]
    assert len(differences) >= 256
    assert max(differences) <= 0.01
    assert sum(differences) / len(differences) <= 0.002


async def test_a_choice_carries_what_training_needs_streamed_or_not(model: Model) -> None:
    """Prompt and token ids, log probabilities, step and temperature come to a client that asks for none of them."""
    whole = await ask(model, seed=1, temperature=0.7)
    assert len(whole.prompt_token_ids) > 3
    assert len(whole.token_ids) == len(whole.logprobs.content)
    assert (whole.checkpoint_step, whole.temperature) == (0, 0.7)

    stream = await model.openai_client().chat.completions.create(
        model="agent", messages=QUESTION, max_tokens=4, seed=1, temperature=0.7, stream=True
    )
    parts: list[Any] = [chunk.choices[0] async for chunk in stream if chunk.choices]
    assert parts[0].prompt_token_ids == whole.prompt_token_ids
    assert [i for part in parts for i in part.model_extra.get("token_ids") or []] == whole.token_ids
    assert (parts[-1].checkpoint_step, parts[-1].temperature) == (0, 0.7)


async def test_a_deleted_checkpoint_is_served_no_more(model: Model) -> None:
    """Its name is a 404 at once, and never answered by other weights; those that stay go on."""
    await train(model)
    await ask(model, "agent@0")
    await model.delete_checkpoints(best_checkpoint_metric=None)
    with pytest.raises(openai.NotFoundError):
        await ask(model, "agent@0")
    assert (await ask(model, "agent")).checkpoint_step == 1


async def test_c152_what_a_checkpoint_directory_holds_is_what_is_served(
    model: Model, tmp_path: Path, vllm_server: VllmServer
) -> None:
    """Weights that were copied into another model's directory answer under its name."""
    await train(model)
    fork = make_model(tmp_path, name="fork")
    shutil.copytree(art.checkpoints_dir(model) / "0001", art.checkpoints_dir(fork) / "0001")
    async with LocalBackend(inference=vllm_server) as backend:
        await fork.register(backend)
        assert await first_logprobs(fork, "fork@1") == await first_logprobs(model, "agent@1")
        assert await first_logprobs(fork, "fork") != await first_logprobs(model, "agent@0")
        await fork.close()


async def test_an_adapter_of_another_model_is_refused_and_not_served_as_the_base_model(
    model: Model, tiny_adapter_dir: Any, backend: LocalBackend
) -> None:
    """VLLM would leave out what it does not find in the base model; the error names the first such weight."""
    shutil.copytree(tiny_adapter_dir(), art.checkpoints_dir(model) / "0001")
    with pytest.raises(art.ArtError, match="does not belong to the base model"):
        await backend._prepare_backend_for_training(model, None)


async def test_more_checkpoints_than_vllm_has_room_for_are_all_served(model: Model) -> None:
    """A hundred steps answer one after the other: adapters come and go behind their names."""
    checkpoints = art.checkpoints_dir(model)
    for step in range(1, 100):
        shutil.copytree(checkpoints / "0000", checkpoints / f"{step:04d}")
    backend = model.backend()
    await backend._prepare_backend_for_training(model, None)  # type: ignore[attr-defined]
    for step in range(100):
        assert (await ask(model, f"agent@{step}", max_tokens=1)).checkpoint_step == step


async def test_requests_wait_while_vllm_sleeps_for_training(
    tmp_path: Path, vllm_server: VllmServer
) -> None:
    """With `sleep_while_training` a request that comes during a step is answered after it, by what was asked for."""
    async with LocalBackend(inference=vllm_server, sleep_while_training=True) as backend:
        model = make_model(tmp_path)
        await model.register(backend)
        training = asyncio.create_task(train(model, await gather(model)))
        answers: list[Any] = []
        while not training.done():
            answers.append(await ask(model, "agent@0", max_tokens=1))
        assert (await training).step == 1
        assert {answer.checkpoint_step for answer in answers} == {0}
        assert (await ask(model, "agent")).checkpoint_step == 1
        await model.close()


async def test_a_train_call_that_ends_on_the_way_to_sleep_leaves_vllm_awake(
    tmp_path: Path, vllm_server: VllmServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a call is cancelled in, or fails in, requests are answered afterwards."""
    async with LocalBackend(inference=vllm_server, sleep_while_training=True) as backend:
        model = make_model(tmp_path)
        await model.register(backend)
        groups = await gather(model, samples=2)
        server = backend._service(model).server
        sleep, asleep = server.sleep, asyncio.Event()

        async def sleep_and_stay() -> None:
            await sleep()
            asleep.set()
            await asyncio.sleep(60)

        monkeypatch.setattr(server, "sleep", sleep_and_stay)
        training = asyncio.create_task(train(model, groups))
        await asleep.wait()
        training.cancel()
        with pytest.raises(asyncio.CancelledError):
            await training
        assert (await ask(model, max_tokens=1)).checkpoint_step == 0

        async def sleep_and_fail() -> None:
            await sleep()
            raise InferenceError("no sleep tonight")

        monkeypatch.setattr(server, "sleep", sleep_and_fail)
        with pytest.raises(InferenceError, match="no sleep"):
            await train(model, groups)
        assert (await ask(model, max_tokens=1)).checkpoint_step == 0
        await model.close()


async def test_a_client_that_hangs_up_does_not_lose_the_adapter_that_was_loading(
    model: Model,
) -> None:
    """Whoever asks next for the same checkpoint is answered."""
    checkpoints = art.checkpoints_dir(model)
    for step in range(1, 6):
        shutil.copytree(checkpoints / "0000", checkpoints / f"{step:04d}")
    backend = model.backend()
    await backend._prepare_backend_for_training(model, None)  # type: ignore[attr-defined]
    for step in range(6):
        hasty = asyncio.create_task(ask(model, f"agent@{step}", max_tokens=1))
        await asyncio.sleep(0.004 * (step + 1))
        hasty.cancel()
        await asyncio.gather(hasty, return_exceptions=True)
        assert (await ask(model, f"agent@{step}", max_tokens=1)).checkpoint_step == step


async def test_a_server_of_another_base_model_is_refused(
    tmp_path: Path, vllm_server: VllmServer, tiny_model_dir: Path
) -> None:
    """A model is never answered by another base model's weights."""
    model = art.TrainableModel(
        name="agent", project="tests", base_model=str(tiny_model_dir), base_path=str(tmp_path)
    )
    async with LocalBackend(inference=vllm_server) as backend:
        with pytest.raises(ConfigurationError, match="a server of its own"):
            await model.register(backend)


async def test_two_models_share_a_server_and_nothing_else(
    model: Model, backend: LocalBackend, tmp_path: Path
) -> None:
    """Each has an address, a key and names of its own; the other's name is a 404."""
    other = make_model(tmp_path, name="other")
    await other.register(backend)
    await train(model)
    assert other.inference_base_url != model.inference_base_url
    assert (await ask(other, "other")).checkpoint_step == 0
    with pytest.raises(openai.NotFoundError):
        await ask(other, "agent@1")
    await other.close()


async def test_a_killed_engine_is_told_and_replaced(
    model: Model, backend: LocalBackend, vllm_server: VllmServer
) -> None:
    """Requests say that the engine does not answer; the next train brings it back with every checkpoint."""
    groups = await gather(model)
    starts = vllm_server.starts
    os.kill(engine_core(group_of(vllm_server)), signal.SIGKILL)
    with pytest.raises(openai.InternalServerError):
        await ask_for_ever(model)

    result = await train(model, groups)

    assert (result.step, vllm_server.starts) == (1, starts + 1)
    assert (await ask(model, "agent@0")).checkpoint_step == 0
    assert (await ask(model, "agent@1")).checkpoint_step == 1
