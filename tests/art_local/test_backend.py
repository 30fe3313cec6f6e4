from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import openai
import pytest

import art
from art.errors import (
    CheckpointDeletionError,
    ConfigurationError,
    InferenceError,
    InvalidTrajectoriesError,
    TrainingError,
    UntrainableTrajectoryError,
)
from art_local import LocalBackend
from art_local.checkpoint_files import copy_step, step_dir
from tests.art_local.processes import children_of, wait_until_gone

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from art_local.managed_child import ManagedChild

pytestmark = pytest.mark.local

LEARNING_RATE = 5e-2  # large, so that one step on a random model shows


def make_model(base_path: Path, base_model: Path | str, name: str = "agent") -> art.TrainableModel:
    return art.TrainableModel(
        name=name,
        project="tests",
        base_model=str(base_model),
        base_path=str(base_path),
        report_metrics=[],
    )


async def rollout(
    model: art.Model[Any, Any], reward: float, name: str | None = None
) -> art.Trajectory:
    messages: list[Any] = [{"role": "user", "content": "Say something."}]
    completion = await model.openai_client().chat.completions.create(
        model=name or model.get_inference_name(), messages=messages, max_tokens=6
    )
    return art.Trajectory(messages_and_choices=[*messages, completion.choices[0]], reward=reward)


async def sampled_groups(
    model: art.Model[Any, Any], num_groups: int = 2
) -> list[art.TrajectoryGroup]:
    return await art.gather_trajectory_groups(
        (
            art.TrajectoryGroup(rollout(model, float(i % 2)) for i in range(4))
            for _ in range(num_groups)
        ),
        pbar_desc=None,
    )


async def logprob_of(model: art.Model[Any, Any], name: str) -> float:
    completion = await model.openai_client().chat.completions.create(
        model=name,
        messages=[{"role": "user", "content": "Say something."}],
        max_tokens=1,
        temperature=0.0,
    )
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    return logprobs.content[0].logprob


def pid_of(child: ManagedChild) -> int:
    assert child.process is not None
    return child.process.pid


@pytest.fixture(scope="module")
def shared(
    tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path
) -> Iterator[tuple[art.TrainableModel, LocalBackend]]:
    """A registered model; its processes are shared by the tests of this file, whatever loop they run in."""
    backend = LocalBackend()
    model = make_model(tmp_path_factory.mktemp("served"), tiny_model_dir)
    asyncio.run(model.register(backend))
    yield model, backend
    asyncio.run(model.close())
    asyncio.run(backend.close())


Served = tuple[art.TrainableModel, LocalBackend]


@pytest.fixture
async def served(shared: Served) -> AsyncIterator[Served]:
    """The shared model; this test's connections are closed with its event loop."""
    yield shared
    await shared[0].close()


async def test_a_rollout_carries_what_training_needs(served: Served) -> None:
    """A choice that comes through the plain client has its tokens, their logprobs, step and temperature."""
    model, _ = served

    trajectory = await rollout(model, 1.0)
    choice: Any = trajectory.messages_and_choices[-1]

    assert choice.checkpoint_step == await model.get_step()
    assert len(choice.token_ids) == len(choice.logprobs.content)
    assert len(choice.prompt_token_ids) > 0
    assert choice.temperature == 1.0


async def test_c149_a_trained_step_is_what_the_endpoint_serves(served: Served) -> None:
    """After a train the pinned name means the new step, whose logprobs differ; the old step stays reachable."""
    model, _ = served
    before = await model.get_step()
    old_name = model.get_inference_name()
    old = await logprob_of(model, old_name)

    result = await model.train(
        await sampled_groups(model), art.TrainConfig(learning_rate=LEARNING_RATE)
    )

    assert result.step == before + 1 == await model.get_step()
    assert model.get_inference_name() == f"agent@{result.step}"
    new = await logprob_of(model, model.get_inference_name())
    assert abs(new - old) > 1e-4
    assert await logprob_of(model, "agent") == pytest.approx(new, abs=1e-6)
    assert await logprob_of(model, old_name) == pytest.approx(old, abs=1e-6)


async def test_sampler_and_trainer_agree(served: Served) -> None:
    """With the same weights on both sides the ratio is 1 within 1e-4."""
    model, _ = served

    metrics = (await model.train(await sampled_groups(model))).metrics

    assert metrics["ratio_min"] == pytest.approx(1.0, abs=1e-4)
    assert metrics["ratio_max"] == pytest.approx(1.0, abs=1e-4)


async def test_equal_rewards_advance_the_step_and_leave_the_weights(served: Served) -> None:
    """Nothing trainable: the new checkpoint is the old one under the next number, and it is served."""
    model, _ = served
    old = await logprob_of(model, "agent")
    step = await model.get_step()
    group = art.TrajectoryGroup([await rollout(model, 1.0) for _ in range(2)])

    result = await model.train([group], art.TrainConfig(learning_rate=LEARNING_RATE))

    assert result.step == step + 1
    weights = [
        (art.checkpoints_dir(model) / f"{n:04d}" / "adapter_model.safetensors").read_bytes()
        for n in (step, step + 1)
    ]
    assert weights[0] == weights[1]
    state = json.loads(
        (art.checkpoints_dir(model) / f"{step + 1:04d}" / "trainer_state.json").read_text()
    )
    assert state["step"] == step + 1
    assert await logprob_of(model, f"agent@{step + 1}") == pytest.approx(old, abs=1e-6)
    await model.train(await sampled_groups(model))  # and it can be trained from


async def test_deleted_steps_are_gone_at_once(served: Served) -> None:
    """A deleted step is neither on disk nor served; it answers 404, never with the base model's text."""
    model, backend = served
    for _ in range(2):
        await model.train(await sampled_groups(model))
    steps = await backend._list_checkpoint_steps(model)

    # The model is shared, and another test asks for step 0.
    result = await model.delete_checkpoints(retention=lambda _steps: [0])

    doomed = steps[1:-1]
    assert doomed
    assert result.deleted == doomed
    assert await backend._list_checkpoint_steps(model) == [0, steps[-1]]
    with pytest.raises(openai.NotFoundError):
        await rollout(model, 1.0, name=f"agent@{doomed[0]}")
    served_names = [m.id async for m in model.openai_client().models.list()]
    assert f"agent@{steps[-1]}" in served_names
    assert f"agent@{doomed[0]}" not in served_names


async def test_rollouts_without_tokens_are_named(served: Served) -> None:
    """A choice of another provider is refused for what it lacks, not for equal rewards; the rollouts stay."""
    model, _ = served
    foreign: list[Any] = [
        {"role": "user", "content": "hi"},
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "a"}},
    ]
    group = art.TrajectoryGroup(
        [art.Trajectory(messages_and_choices=foreign, reward=r) for r in (0.0, 1.0)]
    )
    step = await model.get_step()

    with pytest.raises(UntrainableTrajectoryError, match="group 0, trajectory 0"):
        await model.train([group])

    assert await model.get_step() == step
    assert (art.model_dir(model) / "trajectories" / "train" / f"{step:04d}.parquet").exists()


async def test_a_trajectory_without_a_model_turn_is_named(served: Served) -> None:
    """Plain assistant messages are no model turns; the error says where and what to append."""
    model, _ = served
    group = art.TrajectoryGroup(
        [
            art.Trajectory(messages_and_choices=[{"role": "assistant", "content": "a"}], reward=r)
            for r in (0.0, 1.0)
        ]
    )

    with pytest.raises(InvalidTrajectoriesError, match="no model turn"):
        await model.train([group])


async def test_an_option_that_cannot_be_honoured_is_refused(served: Served) -> None:
    """An accepted option would have to have an effect; one that corrects twice is an error that names it."""
    model, backend = served

    with pytest.raises(ConfigurationError, match="truncated_importance_sampling"):
        await backend.train(model, await sampled_groups(model), truncated_importance_sampling=2.0)


async def test_a_kl_penalty_is_taken_to_the_checkpoint_that_it_names(served: Served) -> None:
    """With the current step as reference the divergence is zero, from an older one it is not; one that is gone is told."""
    model, backend = served
    await backend.train(model, await sampled_groups(model), learning_rate=LEARNING_RATE)
    step = await model.get_step()

    async def divergence(reference: int) -> float:
        result = await model.train(
            await sampled_groups(model),
            art.TrainConfig(learning_rate=0.0),
            {"kl_penalty_coef": 0.1, "kl_penalty_reference_step": reference},
        )
        return result.metrics["kl_policy_ref"]

    assert abs(await divergence(step)) < 1e-6
    assert abs(await divergence(step - 1)) > 1e-6
    with pytest.raises(art.ArtError, match="999"):
        await divergence(999)


async def test_a_cancelled_train_leaves_no_checkpoint(served: Served) -> None:
    """After a cancellation there is no new step, and the next train makes it."""
    model, backend = served
    groups = await sampled_groups(model)
    step = await model.get_step()
    task = asyncio.create_task(model.train(groups))
    request_dirs = art.checkpoints_dir(model) / ".art_local"
    while not list(request_dirs.glob("request-*")):
        await asyncio.sleep(0.001)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task

    committed = await backend._get_step(model)
    assert committed in {step, step + 1}  # a cancellation may come just after the commit
    assert (await model.train(groups)).step == committed + 1
    assert not list(request_dirs.iterdir())


async def test_a_cancelled_creation_does_not_disturb_the_next_train(served: Served) -> None:
    """What the worker says about an abandoned command is not taken for the answer to the next one."""
    model, backend = served
    await model.train(await sampled_groups(model))  # the worker is up
    work_dir = art.checkpoints_dir(model) / ".art_local"
    creation = backend._service(model).worker.create_step_0(work_dir)
    task = asyncio.create_task(creation)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)  # a fast worker may have answered already

    step = await model.get_step()
    assert (await model.train(await sampled_groups(model))).step == step + 1


async def test_steps_that_were_never_published_are_served_after_register(served: Served) -> None:
    """A train that was cancelled after its commit leaves a checkpoint that the server was not told of."""
    model, backend = served
    checkpoints, step = art.checkpoints_dir(model), await model.get_step()
    for new in (step + 1, step + 2):
        copy_step(
            step_dir(checkpoints, step), step_dir(checkpoints, new), checkpoints / ".art_local"
        )

    await model.register(backend)

    assert model.get_inference_name() == f"agent@{step + 2}"
    expected = {f"agent@{step + 1}": step + 1, f"agent@{step + 2}": step + 2, "agent": step + 2}
    for name, meant in expected.items():
        choice: Any = (await rollout(model, 1.0, name=name)).messages_and_choices[-1]
        assert choice.checkpoint_step == meant


async def test_a_step_that_is_made_anew_is_served_anew(served: Served) -> None:
    """A target step that exists already is replaced, on disk and at the endpoint (clause T8)."""
    model, backend = served
    await model.train(await sampled_groups(model))
    groups, step = await sampled_groups(model), await model.get_step()
    old = await logprob_of(model, f"agent@{step}")
    config = art.TrainConfig(learning_rate=LEARNING_RATE, target_step=step)

    events = [event async for event in backend._train_model(model, groups, config, {})]

    assert len(events) == 1
    assert await backend._get_step(model) == step
    assert abs(await logprob_of(model, f"agent@{step}") - old) > 1e-4


async def test_a_step_that_is_still_served_is_not_deleted(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the server refuses to let go of a step its files stay; the others go, and the error tells."""
    model, backend = served
    for _ in range(2):
        await model.train(await sampled_groups(model))
    stuck, *_, latest = await backend._list_checkpoint_steps(model)
    server = backend._service(model).server
    withdraw = server.withdraw

    async def refusing(step: int) -> None:
        if step == stuck:
            raise InferenceError(f"step {step} is busy")
        await withdraw(step)

    monkeypatch.setattr(server, "withdraw", refusing)
    with pytest.raises(CheckpointDeletionError, match=f"step {stuck} is busy"):
        await backend._delete_checkpoint_files(model, [latest])
    assert await backend._list_checkpoint_steps(model) == [stuck, latest]


async def test_a_killed_worker_is_an_error_and_comes_back(served: Served) -> None:
    """The train call fails with the worker's exit, leaves no step, and the next one starts a new worker."""
    model, backend = served
    step = await model.get_step()
    await model.train(await sampled_groups(model))  # the worker is up
    worker = backend._service(model).worker
    os.kill(pid_of(worker.child), signal.SIGKILL)

    groups = await sampled_groups(model)
    task = asyncio.create_task(model.train(groups))
    result = await asyncio.gather(task, return_exceptions=True)

    if isinstance(result[0], BaseException):
        assert isinstance(result[0], TrainingError)
        assert "signal 9" in str(result[0])
        assert await model.get_step() == step + 1
        await model.train(groups)
    assert await model.get_step() == step + 2


async def test_a_dead_server_fails_the_gather_fast_and_comes_back(served: Served) -> None:
    """The gather raises with the end of the server's log; register brings the server back where it was."""
    model, backend = served
    base_url = model.inference_base_url
    server = backend._service(model).server
    os.kill(pid_of(server.child), signal.SIGKILL)

    with pytest.raises(InferenceError, match=r"(?s)model 'agent' is gone.*signal 9.*log"):
        await sampled_groups(model)

    await model.register(backend)
    assert model.inference_base_url == base_url
    await sampled_groups(model)


async def test_a_train_brings_a_dead_server_back(served: Served) -> None:
    """Publishing a new step restarts a server that died in between."""
    model, backend = served
    groups = await sampled_groups(model)
    server = backend._service(model).server
    os.kill(pid_of(server.child), signal.SIGKILL)

    await model.train(groups)

    await sampled_groups(model)


async def test_a_base_model_that_does_not_exist_is_named(tmp_path: Path) -> None:
    """The error of register names the path; no checkpoint is left."""
    model = make_model(tmp_path, tmp_path / "nowhere")

    async with LocalBackend() as backend:
        with pytest.raises(ConfigurationError, match="nowhere"):
            await model.register(backend)

    assert not art.checkpoints_dir(model).exists()


async def test_a_port_in_use_is_named(tmp_path: Path, tiny_model_dir: Path) -> None:
    """The error names the port and says what to do; nothing is left running."""
    model = make_model(tmp_path, tiny_model_dir)
    before = set(children_of(os.getpid()))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        async with LocalBackend() as backend:
            with pytest.raises(InferenceError, match=str(port)):
                await model.register(backend, {"server_args": {"port": port}})
    assert wait_until_gone(sorted(set(children_of(os.getpid())) - before)) == []


SCRIPT = """
import asyncio, sys
import art
from art.local import LocalBackend

async def main():
    backend = LocalBackend()
    model = art.TrainableModel(
        name="agent", project="tests", base_model=sys.argv[1], base_path=sys.argv[2], report_metrics=[]
    )
    await model.register(backend)
    print(await model.get_step(), flush=True)
    if sys.argv[3] == "wait":
        await asyncio.sleep(60)
    elif sys.argv[3] == "close":
        await backend.close()
        await backend.close()

asyncio.run(main())
"""


@pytest.mark.parametrize("ending", ["kill", "close", "forget"])
def test_nothing_is_left_running(tmp_path: Path, tiny_model_dir: Path, ending: str) -> None:
    """However a program ends (killed, closed twice, without close), its children end with it."""
    mode = {"kill": "wait", "close": "close", "forget": "forget"}[ending]
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), str(tiny_model_dir), str(tmp_path), mode],
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "0\n"
        children = children_of(program.pid)
        if ending == "kill":
            assert len(children) == 2
            program.kill()
        program.wait(timeout=30)
    assert program.returncode == (-signal.SIGKILL if ending == "kill" else 0)
    assert wait_until_gone(children) == []


async def test_a_new_process_continues_at_the_right_step(
    tmp_path: Path, tiny_model_dir: Path
) -> None:
    """A second backend on the same directory goes on where the first one was closed, in the midst of a train."""
    others = children_of(os.getpid())
    model = make_model(tmp_path, tiny_model_dir)
    async with LocalBackend() as backend:
        await model.register(backend)
        assert await backend._list_checkpoint_steps(model) == [0]
        assert await logprob_of(model, "agent@0") < 0
        groups = await sampled_groups(model)
        await model.train(groups, art.TrainConfig(learning_rate=LEARNING_RATE))
        last = await logprob_of(model, "agent")
        await model.close()
        interrupted = asyncio.create_task(model.train(groups))
        while not list((art.checkpoints_dir(model) / ".art_local").iterdir()):
            await asyncio.sleep(0.001)
    with pytest.raises(TrainingError, match="it was closed"):
        await interrupted
    assert children_of(os.getpid()) == others

    model = make_model(tmp_path, tiny_model_dir)
    async with LocalBackend() as backend:
        await model.register(backend)
        assert await model.get_step() == 1
        assert await logprob_of(model, "agent") == pytest.approx(last, abs=1e-6)
        await model.close()
