from __future__ import annotations

import asyncio
import inspect
import json
import logging
import math
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import art
from art.errors import (
    ConfigurationError,
    InvalidBackendError,
    InvalidTrajectoriesError,
    LogError,
    NotRegisteredError,
)
from art.rules.learning_rate import MAX_MULTIPLIER, MIN_MULTIPLIER, multiplier
from art.rules.statistics import population_std
from art.testing import InMemoryBackend, TrainCall
from tests.art.factories import group, model, trajectory
from tests.profiles import examples

if TYPE_CHECKING:
    from pathlib import Path

HistoryRows = Callable[[art.Model[Any, Any]], list[dict[str, Any]]]


async def registered(
    tmp_path: Path, backend: InMemoryBackend | None = None
) -> tuple[art.TrainableModel[Any, Any], InMemoryBackend]:
    backend = backend or InMemoryBackend()
    agent = model(tmp_path)
    await agent.register(backend)
    return agent, backend


async def test_train_logs_the_groups_at_n_and_the_metrics_at_n_plus_1(
    tmp_path: Path, history_rows: HistoryRows
) -> None:
    """Rollouts belong to the policy that made them, the training metrics to the step they led to."""
    agent, backend = await registered(tmp_path)

    result = await agent.train([group(0.0, 1.0)], art.TrainConfig(learning_rate=1e-4))

    assert result.step == 1
    rollouts, training = history_rows(agent)
    assert rollouts["step"] == 0
    assert rollouts["train/reward"] == 0.5
    assert rollouts["train/reward_std_dev"] == 0.5
    assert training["step"] == 1
    assert training["train/loss"] == 0.5
    assert training["train/num_groups_submitted"] == 1
    assert training["train/num_groups_trainable"] == 1
    assert training["train/learning_rate"] == 1e-4
    assert (art.model_dir(agent) / "trajectories" / "train" / "0000.parquet").exists()
    assert backend.calls[0].config.target_step == 1
    assert await agent.get_step() == 1


async def test_result_metrics_are_those_of_the_row(
    tmp_path: Path, history_rows: HistoryRows
) -> None:
    """What train returns is what its history row says."""
    agent, _ = await registered(tmp_path)

    result = await agent.train([group(0.0, 1.0)])

    row = history_rows(agent)[-1]
    assert {f"train/{key}": value for key, value in result.metrics.items()} == {
        key: value for key, value in row.items() if "/" in key
    }


async def test_stream_metrics_are_averaged_and_counts_summed(tmp_path: Path) -> None:
    """Over the gradient steps of one call, `num_*` add up and the others are means."""
    events = [
        {"loss": 1.0, "num_tokens": 10.0, "num_gradient_steps": 2.0},
        {"loss": 3.0, "num_tokens": 5.0, "num_gradient_steps": 2.0},
    ]
    agent, _ = await registered(tmp_path, InMemoryBackend(events=events))

    metrics = (await agent.train([group(0.0, 1.0)])).metrics

    assert metrics["loss"] == 2.0
    assert metrics["num_tokens"] == 15.0
    assert "num_gradient_steps" not in metrics


async def test_a_bad_metric_does_not_lose_a_finished_train(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Keys and values that break clause T3 are left out with one warning; the step counts."""
    bad: dict[str, Any] = {
        "loss": 1.0,
        "step": 3.0,
        "train/x": 1.0,
        "nan": math.nan,
        "text": "oops",
    }
    no_dict: Any = ["loss", 2.0]
    agent, _ = await registered(tmp_path, InMemoryBackend(events=[bad, no_dict]))

    with caplog.at_level(logging.WARNING, "art"):
        result = await agent.train([group(0.0, 1.0)])

    assert result.step == 1
    assert result.metrics["loss"] == 1.0
    assert not {"step", "train/x", "nan", "text"} & set(result.metrics)
    (warning,) = [record.message for record in caplog.records if "T3" in record.message]
    assert "an event is a list, not a dict" in warning


async def test_a_reused_dict_does_not_blur_the_events(tmp_path: Path) -> None:
    """A backend may fill one dict again and again."""

    def events(_: TrainCall) -> Iterator[dict[str, float]]:
        reused: dict[str, float] = {}
        for loss in (1.0, 2.0, 6.0):
            reused["loss"] = loss
            yield reused

    agent, _ = await registered(tmp_path, InMemoryBackend(events=events))

    assert (await agent.train([group(0.0, 1.0)])).metrics["loss"] == 3.0


async def test_a_backend_error_reaches_the_caller_and_the_rollouts_stay(
    tmp_path: Path, history_rows: HistoryRows
) -> None:
    """The error keeps its own type, the step stays, and what was logged before training is there."""
    agent, backend = await registered(tmp_path, InMemoryBackend(raises=KeyError("gpu")))

    with pytest.raises(KeyError, match="gpu"):
        await agent.train([group(0.0, 1.0)])

    assert [row["step"] for row in history_rows(agent)] == [0]
    assert await agent.get_step() == 0
    backend.raises = None
    assert (await agent.train([group(0.0, 1.0)])).step == 1


async def test_a_train_whose_account_cannot_be_written_keeps_its_number(tmp_path: Path) -> None:
    """The error tells the step and the metrics of the finished train, and the next train makes the step after it."""
    agent, backend = await registered(tmp_path, InMemoryBackend.supporting())
    ledger = art.model_dir(agent) / "steps.jsonl"

    def lose_the_disk(_: TrainCall) -> Iterator[dict[str, float]]:
        ledger.mkdir()  # where a file should be: nothing can be appended
        yield {"loss": 0.5}

    backend.events = lose_the_disk

    with pytest.raises(LogError) as caught:
        await agent.train([group(0.0, 1.0)])

    [note] = caught.value.__notes__
    assert "step 1 stands" in note
    assert "'loss': 0.5" in note
    ledger.rmdir()
    backend.events = ()
    assert await agent.get_step() == 1
    assert (await agent.train([group(0.0, 1.0)])).step == 2
    assert [call.config.target_step for call in backend.calls] == [1, 2]


async def test_a_cancelled_train_leaves_the_step(tmp_path: Path) -> None:
    """Cancellation passes through, the backend's stream is closed, and the next train works."""
    closed = asyncio.Event()

    class Endless(InMemoryBackend):
        async def _train_model(self, *args: Any, **kwargs: Any) -> AsyncIterator[dict[str, float]]:
            try:
                while True:
                    yield {"loss": 1.0}
                    await asyncio.sleep(0.001)
            finally:
                closed.set()

    agent = model(tmp_path)
    await agent.register(Endless())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(agent.train([group(0.0, 1.0)]), timeout=0.2)
    assert closed.is_set()
    assert await agent.get_step() == 0
    await agent.register(InMemoryBackend())
    assert (await agent.train([group(0.0, 1.0)])).step == 1


async def test_c124_nothing_trainable_still_advances_the_step(tmp_path: Path) -> None:
    """Groups of equal rewards train nothing; the step advances and the counts explain it."""
    agent, _ = await registered(tmp_path, InMemoryBackend(events=[]))

    result = await agent.train([group(1.0, 1.0), group(0.0, 0.0)])

    assert result.step == 1
    assert result.metrics["num_groups_submitted"] == 2
    assert result.metrics["num_groups_trainable"] == 0


@pytest.mark.parametrize("empty", [[], (), iter(())])
async def test_train_on_nothing_raises_before_anything_is_written(
    tmp_path: Path, empty: Any
) -> None:
    """An empty batch is an error that leaves no file and no step behind."""
    agent, backend = await registered(tmp_path)

    with pytest.raises(InvalidTrajectoriesError, match="empty"):
        await agent.train(empty)

    assert not (art.model_dir(agent) / "trajectories").exists()
    assert not (art.model_dir(agent) / "history.jsonl").exists()
    assert backend.calls == []


async def test_train_before_register_says_what_to_do(tmp_path: Path) -> None:
    """Training an unregistered model names the missing call and writes nothing."""
    agent = model(tmp_path)

    with pytest.raises(NotRegisteredError, match=r"await model\.register\(backend\)"):
        await agent.train([group(0.0, 1.0)])

    assert not (art.model_dir(agent) / "history.jsonl").exists()


async def test_a_mixed_list_is_refused_whole(tmp_path: Path, history_rows: HistoryRows) -> None:
    """Groups and bare trajectories in one list are refused before anything is written."""
    agent, _ = await registered(tmp_path)

    with pytest.raises(InvalidTrajectoriesError, match="item 1 is a Trajectory"):
        await agent.train([group(0.0, 1.0), trajectory(1.0)])  # type: ignore[list-item]

    assert history_rows(agent) == []


async def test_a_generator_of_groups_is_consumed_once(
    tmp_path: Path, history_rows: HistoryRows
) -> None:
    """A one-shot iterator loses no group on its way through logging and training."""
    agent, backend = await registered(tmp_path)

    await agent.train(group(reward, reward + 2.0) for reward in (0.0, 2.0))

    assert history_rows(agent)[0]["train/reward"] == 2.0
    assert len(backend.calls[0].groups) == 2


async def test_non_finite_rewards_are_logged_counted_and_not_trained(
    tmp_path: Path, history_rows: HistoryRows
) -> None:
    """A NaN reward is in the file and in the count, and never reaches the backend."""
    agent, backend = await registered(tmp_path)

    await agent.train([group(0.0, 1.0, math.nan)])

    row = history_rows(agent)[0]
    assert row["train/reward"] == 0.5
    assert row["train/num_nonfinite"] == 1
    assert row["train/num_trajectories"] == 3
    assert [t.reward for t in backend.calls[0].groups[0]] == [0.0, 1.0]


@pytest.mark.parametrize("spelling", ["model.train", "backend.train"])
async def test_learning_rate_is_scaled_by_the_trend_of_the_reward_spread(
    tmp_path: Path, spelling: str
) -> None:
    """Both spellings hand the backend the same scaled rate, and never the flag itself."""
    agent, backend = await registered(tmp_path)
    batches = [group(0.0, 4.0), group(0.0, 3.0), group(0.0, 2.0)]  # spread 2.0, 1.5, 1.0

    for batch in batches:
        if spelling == "model.train":
            await agent.train(
                [batch],
                art.TrainConfig(learning_rate=1.0),
                _config={"scale_learning_rate_by_reward_std_dev": True},
            )
        else:
            result = await backend.train(
                agent, [batch], learning_rate=1.0, scale_learning_rate_by_reward_std_dev=True
            )
            await agent.log([batch], "train", metrics=result.metrics, step=result.step)

    rates = [call.config.learning_rate for call in backend.calls]
    assert rates == pytest.approx([1.0, 0.75, 0.5])
    assert all(call.dev_config == {} for call in backend.calls)


async def test_scaling_is_logged_only_when_it_is_on(tmp_path: Path) -> None:
    """The multiplier is a metric of a scaled train, and absent from others."""
    agent, _ = await registered(tmp_path)

    plain = await agent.train([group(0.0, 1.0)])
    scaled = await agent.train(
        [group(0.0, 1.0)], _config={"scale_learning_rate_by_reward_std_dev": True}
    )

    assert "learning_rate_multiplier" not in plain.metrics
    assert scaled.metrics["learning_rate_multiplier"] == pytest.approx(1.0)


async def test_backend_train_writes_no_row_and_its_groups_remember_their_policy(
    tmp_path: Path, history_rows: HistoryRows
) -> None:
    """A later log at N+1 still credits the reward to policy N."""
    agent, backend = await registered(tmp_path)
    groups = [group(0.0, 1.0)]

    result = await backend.train(agent, groups, learning_rate=1e-4, save_checkpoint=False)
    assert history_rows(agent) == []
    await agent.log(groups, metrics=result.metrics, step=result.step, split="train")

    (row,) = history_rows(agent)
    assert (row["step"], row["policy_step"]) == (1, 0)
    assert row["train/loss"] == 0.5
    assert await agent.get_step() == 1


@pytest.mark.parametrize("reward", [None, "0.5", 10**400])
async def test_backend_train_names_a_reward_that_is_no_number(tmp_path: Path, reward: Any) -> None:
    """Nothing is logged in this spelling, so the batch is refused whole, with the place of the reward."""
    agent, backend = await registered(tmp_path)
    batch = group(0.0, 1.0)
    batch.trajectories[1].reward = reward

    with pytest.raises(InvalidTrajectoriesError, match="group 0, trajectory 1: reward is"):
        await backend.train(agent, [batch], learning_rate=1e-5)

    assert backend.calls == []


async def test_backend_train_refuses_an_unknown_keyword(tmp_path: Path) -> None:
    """A misspelt option is a TypeError that names it and the nearest known one."""
    agent, backend = await registered(tmp_path)

    with pytest.raises(TypeError, match="'learning_rat'; did you mean 'learning_rate'"):
        await backend.train(agent, [group(0.0, 1.0)], learning_rat=1.0)  # type: ignore[call-arg]

    assert backend.calls == []


async def test_backend_train_works_for_a_backend_with_the_two_methods_only(tmp_path: Path) -> None:
    """`art.backend_train` needs no mixin."""

    class Two:
        async def _train_model(
            self, model: Any, groups: Any, config: Any, dev_config: Any, verbose: bool = False
        ) -> AsyncIterator[dict[str, float]]:
            yield {"loss": 1.0}

        async def _delete_checkpoint_files(self, model: Any, steps_to_keep: list[int]) -> None:
            pass

    agent = model(tmp_path)
    await agent.register(Two())

    assert (await art.backend_train(agent, [group(0.0, 1.0)])).step == 1
    await agent.delete_checkpoints(None)


async def test_backend_train_on_a_model_of_another_backend_is_refused(tmp_path: Path) -> None:
    """A backend does not train a model that is registered elsewhere."""
    agent, _ = await registered(tmp_path)

    with pytest.raises(ConfigurationError, match="registered with"):
        await InMemoryBackend().train(agent, [group(0.0, 1.0)])


async def test_a_plain_function_that_returns_no_iterator_is_named(tmp_path: Path) -> None:
    """What register could not see is told at the first train; the rollouts stay logged."""

    class Liar(InMemoryBackend):
        def _train_model(self, *args: Any, **kwargs: Any) -> AsyncIterator[dict[str, float]]:
            return [{"loss": 1.0}]  # type: ignore[return-value]

    agent = model(tmp_path)
    await agent.register(Liar())

    with pytest.raises(InvalidBackendError, match=r"Liar\._train_model returned a list"):
        await agent.train([group(0.0, 1.0)])


async def test_two_trains_of_one_model_wait_for_each_other(tmp_path: Path) -> None:
    """Concurrent train calls of a process get different steps."""
    agent, backend = await registered(tmp_path)

    results = await asyncio.gather(*(agent.train([group(0.0, 1.0)]) for _ in range(3)))

    assert sorted(result.step for result in results) == [1, 2, 3]
    assert sorted(call.config.target_step or 0 for call in backend.calls) == [1, 2, 3]


def test_c101_three_event_loops_in_a_row_work(tmp_path: Path) -> None:
    """The same model and backend go on working in a new event loop."""
    agent, backend = model(tmp_path), InMemoryBackend()
    asyncio.run(agent.register(backend))

    steps = [asyncio.run(agent.train([group(0.0, 1.0)])).step for _ in range(3)]

    assert steps == [1, 2, 3]


async def test_the_groups_are_not_changed_by_training(tmp_path: Path) -> None:
    """Training reads groups and leaves them as they are."""
    agent, _ = await registered(tmp_path)
    groups = [group(0.0, 1.0, math.nan)]
    before = json.dumps([g.model_dump(mode="json") for g in groups])

    await agent.train(groups)

    assert json.dumps([g.model_dump(mode="json") for g in groups]) == before


def test_parameter_names_of_both_spellings_are_pinned() -> None:
    """Scripts pass these by name."""
    assert list(inspect.signature(art.TrainableModel.train).parameters) == [
        "self",
        "trajectory_groups",
        "config",
        "_config",
        "verbose",
    ]
    assert list(inspect.signature(art.BackendTrainMixin.train).parameters) == [
        "self",
        "model",
        "trajectory_groups",
        "options",
    ]


async def test_a_config_that_is_no_config_is_refused_before_anything_is_written(
    tmp_path: Path, history_rows: HistoryRows
) -> None:
    """A dict in the place of TrainConfig, or a misspelt setting, costs nothing but the call."""
    agent, _ = await registered(tmp_path)

    with pytest.raises(ConfigurationError, match="config is a dict"):
        await agent.train([group(0.0, 1.0)], {"learning_rate": 1.0})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="lr"):
        art.TrainConfig(lr=1.0)  # type: ignore[call-arg]

    assert history_rows(agent) == []


# Spreads at the lower end of the floats are rounding noise, which the rule and the sums round apart.
rewards = st.just(0.0) | st.floats(1e-6, 9.0)
batches = st.lists(st.lists(rewards, min_size=2, max_size=4), min_size=2, max_size=6)


@settings(max_examples=examples(10))
@given(rewards=batches)
def test_both_spellings_scale_alike(
    tmp_path_factory: pytest.TempPathFactory, rewards: list[list[float]]
) -> None:
    """Over any rewards, both hand the backend the same rates: upstream's formula, within the bounds."""
    rates = {
        spelling: asyncio.run(scaled_rates(tmp_path_factory.mktemp("run"), spelling, rewards))
        for spelling in ("model.train", "backend.train")
    }

    assert rates["model.train"] == rates["backend.train"]
    points: dict[int, float] = {}
    for step, batch in enumerate(rewards):
        points[step] = population_std(batch)
        expected = multiplier(points)
        if len(points) > 1:
            slope, start = np.polyfit(list(points), list(points.values()), 1)
            if start > 1e-6 * max(points.values()):
                upstream = (slope * step + start) / start
                expected = min(max(upstream, MIN_MULTIPLIER), MAX_MULTIPLIER)
        assert rates["model.train"][step] == pytest.approx(expected, rel=1e-6)


async def scaled_rates(tmp_path: Path, spelling: str, rewards: list[list[float]]) -> list[float]:
    agent, backend = await registered(tmp_path)
    for batch in rewards:
        groups = [group(*batch)]
        if spelling == "model.train":
            await agent.train(
                groups,
                art.TrainConfig(learning_rate=1.0),
                _config={"scale_learning_rate_by_reward_std_dev": True},
            )
        else:
            result = await backend.train(
                agent, groups, learning_rate=1.0, scale_learning_rate_by_reward_std_dev=True
            )
            await agent.log(groups, "train", metrics=result.metrics, step=result.step)
    return [call.config.learning_rate for call in backend.calls]


async def test_a_batch_joins_what_its_step_has_by_weight(tmp_path: Path) -> None:
    """A second batch of a step counts together with the first, as it will once it is logged."""
    agent, backend = await registered(tmp_path)
    options: dict[str, Any] = {"scale_learning_rate_by_reward_std_dev": True, "learning_rate": 1.0}
    await backend.train(agent, [first := group(0.0, 4.0)], **options)
    await agent.log([first], "train", step=1)
    await agent.log([group(0.0, 2.0)], "train", step=1)

    await backend.train(agent, [group(0.0, 4.0, 0.0, 4.0, 0.0, 4.0)], **options)

    # Step 0: 2.0. Step 1: two trajectories of 1.0 and six of 2.0.
    assert backend.calls[-1].config.learning_rate == pytest.approx(1.75 / 2.0)


async def test_a_batch_without_a_spread_is_no_observation(tmp_path: Path) -> None:
    """Groups of one trajectory, or of none, leave the trend as it is."""
    agent, backend = await registered(tmp_path)
    for batch in ([group(0.0, 4.0)], [group(0.0, 2.0)], [group(1.0)], [group(0.0, 1.0)]):
        await agent.train(
            batch,
            art.TrainConfig(learning_rate=1.0),
            _config={"scale_learning_rate_by_reward_std_dev": True},
        )

    rates = [call.config.learning_rate for call in backend.calls]
    # The last one: points 2.0, 1.0 and 0.5 at the steps 0, 1 and 3.
    assert rates == pytest.approx([1.0, 0.5, 0.5, multiplier({0: 2.0, 1: 1.0, 3: 0.5})])
