from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from art.rules.metrics import aggregate, reduce_stream
from art.trajectories import Trajectory, TrajectoryGroup


def group(
    *rewards: float, exceptions: int = 0, metrics: dict[str, Any] | None = None
) -> TrajectoryGroup:
    return TrajectoryGroup(
        [Trajectory(reward=reward) for reward in rewards],
        exceptions=[RuntimeError("rollout failed")] * exceptions,
        metrics=metrics,
    )


def test_aggregates_of_a_batch() -> None:
    """Rewards are pooled over trajectories, spreads averaged over groups with at least two."""
    metrics = aggregate([group(0.0, 1.0), group(1.0), group(0.5, 0.5, 0.5)])
    assert metrics == {
        "reward": 3.5 / 6,
        "exception_rate": 0.0,
        "reward_std_dev": 0.25,
        "num_trajectories": 6.0,
        "num_groups_scored": 2.0,
    }
    assert {type(value) for value in metrics.values()} == {float}


def test_exceptions_are_counted_against_all_rollouts() -> None:
    """Two trajectories and one exception are an exception rate of a third."""
    assert aggregate([group(1.0, 0.0, exceptions=1)])["exception_rate"] == 1 / 3


def test_all_rollouts_failed() -> None:
    """Without a trajectory there is no reward, and the exception rate is 1."""
    assert aggregate([group(exceptions=3)]) == {
        "exception_rate": 1.0,
        "reward_std_dev": 0.0,
        "num_trajectories": 0.0,
        "num_groups_scored": 0.0,
    }


def test_no_groups_have_no_reward() -> None:
    """An empty batch has counts of zero and nothing else."""
    assert aggregate([]) == aggregate([group()])
    assert "reward" not in aggregate([])


def test_c057_single_trajectories_have_no_spread_to_fit() -> None:
    """Groups of one give a spread of 0.0 that no group stands behind."""
    metrics = aggregate([group(1.0), group(0.0)])
    assert metrics["reward_std_dev"] == 0.0
    assert metrics["num_groups_scored"] == 0.0


def test_c127_the_spread_is_within_groups() -> None:
    """A batch whose groups differ, each without a spread of its own, has a spread of exactly 0."""
    assert aggregate([group(0.1, 0.1, 0.1), group(5.1, 5.1, 5.1)])["reward_std_dev"] == 0.0


def test_c037_nonfinite_rewards_and_metrics_are_left_out_and_counted() -> None:
    """Means are over the finite values, and one number says how many were left out."""
    batch = group(1.0, math.nan, math.inf, 0.0)
    batch.trajectories[0].metrics["x"] = 2.0
    batch.trajectories[1].metrics["x"] = math.nan
    batch.metrics["judge"] = -math.inf
    metrics = aggregate([batch])
    assert metrics["reward"] == 0.5
    assert metrics["x"] == 2.0
    assert metrics["reward_std_dev"] == 0.5
    assert metrics["num_nonfinite"] == 4.0
    assert metrics["num_trajectories"] == 4.0
    assert "group_metric_judge" not in metrics


def test_c039_a_failed_score_is_not_a_zero() -> None:
    """A rollout whose scoring raised counts as an exception and does not pull the mean down."""
    metrics = aggregate([TrajectoryGroup([Trajectory(reward=1.0), ValueError("judge timed out")])])
    assert metrics["reward"] == 1.0
    assert metrics["exception_rate"] == 0.5
    unscored = Trajectory()
    unscored.reward = None  # type: ignore[assignment] # what scripts write for "not scored"
    with pytest.raises(TypeError, match="reward of group 0, trajectory 1 is None"):
        aggregate([TrajectoryGroup([Trajectory(reward=1.0), unscored])])


def test_metrics_are_averaged_over_the_trajectories_that_have_them() -> None:
    """A metric on one of two trajectories has that trajectory's value; booleans are fractions."""
    batch = TrajectoryGroup(
        [
            Trajectory(metrics={"only": 2, "won": True}, auto_metrics={"tokens": 10, "won": False}),
            Trajectory(metrics={"won": False}, auto_metrics={"tokens": 20}),
        ]
    )
    metrics = aggregate([batch])
    assert metrics["only"] == 2.0
    assert metrics["won"] == 0.5
    assert metrics["tokens"] == 15.0


def test_group_metrics_are_averaged_over_groups() -> None:
    """A group's own metric counts once per group, whatever the group's size."""
    batches = [
        group(1.0, 1.0, 1.0, metrics={"judge": 1.0}),
        group(metrics={"judge": 0}),
        group(0.0),
    ]
    assert aggregate(batches)["group_metric_judge"] == 0.5


def test_a_metric_with_the_name_of_an_aggregate_gives_way() -> None:
    """A trajectory metric called "reward" cannot change what the reward is."""
    batch = TrajectoryGroup([Trajectory(reward=1.0, metrics={"reward": 9, "num_nonfinite": 9})])
    assert aggregate([batch])["reward"] == 1.0
    assert "num_nonfinite" not in aggregate([batch])


def test_c033_numpy_rewards_and_metrics_are_plain_numbers() -> None:
    """Values that a script assigned after construction may come from numpy."""
    trajectory = Trajectory()
    trajectory.reward = np.float32(0.5)  # type: ignore[assignment] # scripts do this
    trajectory.metrics["n"] = np.int64(3)  # type: ignore[assignment] # scripts do this
    metrics = aggregate([TrajectoryGroup([trajectory])])
    assert (metrics["reward"], metrics["n"]) == (0.5, 3.0)
    assert {type(value) for value in metrics.values()} == {float}


def test_c024_whole_numbers_before_fractions_are_exact() -> None:
    """150 whole rewards, then 0.5 and 1.9: the mean is that of these numbers."""
    rewards = [1.0] * 150 + [0.5, 1.9]
    assert aggregate([group(*rewards)])["reward"] == pytest.approx(152.4 / 152, rel=1e-15)


@given(st.lists(st.lists(st.floats(), max_size=4), max_size=4))
def test_aggregates_are_always_finite(batch: list[list[float]]) -> None:
    """No rewards make a metric NaN or infinite."""
    metrics = aggregate([group(*rewards) for rewards in batch])
    assert all(math.isfinite(value) for value in metrics.values())
    total = sum(map(len, batch))
    assert metrics["num_trajectories"] == total
    assert ("reward" in metrics) == any(math.isfinite(r) for rewards in batch for r in rewards)


def test_stream_sums_counts_and_averages_the_rest() -> None:
    """Keys `num_*` are summed, others averaged over the events that have them, progress is dropped."""
    metrics, problems = reduce_stream(
        [
            {"loss": 1.0, "num_tokens": 10, "num_gradient_steps": 2},
            {"loss": 3.0, "num_tokens": 5, "late": 1.0, "num_gradient_steps": 2},
        ]
    )
    assert metrics == {"loss": 2.0, "num_tokens": 15.0, "late": 1.0}
    assert problems == []


def test_no_events_have_no_metrics() -> None:
    """A stream without events is an empty row."""
    assert reduce_stream([]) == ({}, [])


@pytest.mark.parametrize(
    "bad",
    [
        {"step": 1},
        {"reward": 1.0},
        {"recorded_at": 1.0},
        {"training_step": 1},
        {"reward_std_dev": 0.5},
        {"learning_rate": 1e-5},
        {"train/loss": 1.0},
        {"x": math.nan},
        {"x": math.inf},
        {"x": "1.0"},
        {"x": None},
        {"x": 10**400},
        {3: 1.0},
        None,
    ],
)
def test_what_a_backend_may_not_send_is_left_out_and_told_once(bad: Any) -> None:
    """A bad name or value costs only itself, with one sentence however often it comes."""
    metrics, problems = reduce_stream([{"loss": 1.0, **(bad or {})}, bad, {"loss": 3.0}, bad])
    assert metrics == {"loss": 2.0}
    assert len(problems) == 1


def test_sum_that_overflows_is_left_out() -> None:
    """Counts that add up to infinity are told, not written."""
    metrics, problems = reduce_stream([{"num_x": 1e308}] * 3)
    assert metrics == {}
    assert len(problems) == 1
