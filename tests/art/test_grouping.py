from __future__ import annotations

import math
from typing import Any

import pytest

import art
from art.errors import InvalidTrajectoriesError
from art.grouping import as_groups, check_rewards, policy_step_of, with_finite_rewards
from tests.art.factories import group, trajectory


def test_groups_come_back_as_they_are() -> None:
    """A list of groups keeps its objects and their order."""
    groups = [group(1.0), group(0.0)]

    assert [id(g) for g in as_groups(groups)] == [id(g) for g in groups]
    assert as_groups(groups[0]) == [groups[0]]


def test_a_flat_run_is_one_group() -> None:
    """Trajectories and exceptions that no group holds are taken as one."""
    (flat,) = as_groups([trajectory(1.0), ValueError("x"), trajectory(0.0)])

    assert len(flat) == 2
    assert len(flat.exceptions) == 1
    assert len(as_groups(trajectory(1.0))[0]) == 1


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([group(1.0), trajectory(1.0)], "item 1 is a Trajectory but other items are groups"),
        ([trajectory(1.0), group(1.0)], "item 0 is a Trajectory"),
        ([group(1.0), ValueError("x")], "item 1 is a ValueError"),
        ([1.0], "item 0 is a float"),
        ([{"reward": 1.0}], "item 0 is a dict"),
    ],
)
def test_what_does_not_fit_is_named(items: Any, message: str) -> None:
    """The error tells which item is wrong and what was expected."""
    with pytest.raises(InvalidTrajectoriesError, match=message):
        as_groups(items)


async def test_an_awaitable_that_was_not_awaited_is_named() -> None:
    """Forgetting `await` on a gather is told as that."""

    async def rollout() -> art.Trajectory:
        return trajectory(1.0)

    coroutine = rollout()
    with pytest.raises(InvalidTrajectoriesError, match="not awaited"):
        as_groups([coroutine])
    await coroutine


def test_a_reward_that_is_no_number_is_named_in_every_form() -> None:
    """A list, a single group and a single trajectory are checked alike."""
    unscored = trajectory(1.0)
    unscored.reward = None  # type: ignore[assignment]  # the mistake under test

    for items in ([unscored], unscored, art.TrajectoryGroup([unscored])):
        with pytest.raises(InvalidTrajectoriesError, match="group 0, trajectory 0: reward is None"):
            check_rewards(as_groups(items))


def test_non_finite_rewards_are_left_out_and_the_group_is_not_changed() -> None:
    """Only groups that need it are rebuilt, with all else kept."""
    whole, partly = group(1.0, 0.0), group(1.0, math.nan, math.inf, metadata={"task": 1})

    first, second = with_finite_rewards([whole, partly])

    assert first is whole
    assert [t.reward for t in second] == [1.0]
    assert second.metadata == {"task": 1}
    assert len(partly) == 3


def test_the_policy_step_of_mixed_groups_is_unknown() -> None:
    """Only groups that were all trained at one step tell a policy step."""
    a, b = group(1.0), group(0.0)
    assert policy_step_of([a, b]) is None
    a._policy_step = b._policy_step = 3
    assert policy_step_of([a, b]) == 3
    b._policy_step = 4
    assert policy_step_of([a, b]) is None


def test_stored_exceptions_may_stand_in_a_flat_run() -> None:
    """The trajectories and exceptions of a group can be logged again as they lie in it."""
    failed = art.TrajectoryGroup([trajectory(1.0), ValueError("x")])

    (flat,) = as_groups([*failed.trajectories, *failed.exceptions])

    assert len(flat) == 1
    assert flat.exceptions == failed.exceptions


@pytest.mark.parametrize("items", [5, None, object()])
def test_what_cannot_be_iterated_is_named(items: Any) -> None:
    """The error is the one that callers of `log` and `train` catch."""
    with pytest.raises(InvalidTrajectoriesError, match="what was passed is a"):
        as_groups(items)


@pytest.mark.parametrize("reward", [None, "0.5", 10**400])
def test_a_reward_that_is_no_number_is_refused_in_every_form(reward: Any) -> None:
    """A single group or trajectory is looked at as closely as a list of them."""
    bad = trajectory(0.0)
    bad.reward = reward

    for items in (bad, [bad], art.TrajectoryGroup([bad]), [art.TrajectoryGroup([bad])]):
        with pytest.raises(InvalidTrajectoriesError, match="group 0, trajectory 0: reward is"):
            check_rewards(as_groups(items))
