from __future__ import annotations

import asyncio
import gc
import logging
import sys
from typing import TYPE_CHECKING, Any

import pytest

import art
from art.errors import ConfigurationError, InvalidTrajectoriesError
from art.gather import (
    GatherContext,
    get_gather_context,
    record_metrics,
    set_gather_context,
    wrap_group_awaitable,
)
from tests.art.factories import trajectory

if TYPE_CHECKING:
    from collections.abc import Awaitable


class RolloutError(Exception):
    pass


async def succeed(reward: float, gate: asyncio.Event | None = None) -> art.Trajectory:
    if gate is not None:
        await gate.wait()
    return trajectory(reward)


async def fail(text: str = "boom", gate: asyncio.Event | None = None) -> art.Trajectory:
    if gate is not None:
        await gate.wait()
    raise RolloutError(text)


def rewards(groups: list[art.TrajectoryGroup]) -> list[list[float]]:
    return [[item.reward for item in group] for group in groups]


def pending(*rollouts: Awaitable[art.Trajectory], **fields: Any) -> art.TrajectoryGroup:
    return art.TrajectoryGroup(rollouts, **fields)


async def test_groups_and_trajectories_keep_the_order_of_their_awaitables() -> None:
    """The rollout that ends first does not come first."""
    gate = asyncio.Event()

    async def open_gate(reward: float) -> art.Trajectory:
        gate.set()
        return trajectory(reward)

    groups = await art.gather_trajectory_groups(
        pending(*rollouts)
        for rollouts in ([succeed(0, gate), succeed(1)], [open_gate(2), succeed(3, gate)])
    )
    assert rewards(groups) == [[0.0, 1.0], [2.0, 3.0]]


async def test_the_fields_of_a_group_are_kept() -> None:
    """Metadata, metrics and logs given beside awaitables arrive in the finished group."""
    [group] = await art.gather_trajectory_groups(
        [pending(succeed(1), metadata={"id": 7}, metrics={"difficulty": 0.5}, logs=["a"])]
    )
    assert (group.metadata, group.metrics, group.logs) == ({"id": 7}, {"difficulty": 0.5}, ["a"])


async def test_a_plain_coroutine_of_a_group_and_a_finished_group_work_too() -> None:
    """Whatever awaits to a group can be gathered."""

    async def whole_group() -> art.TrajectoryGroup:
        return art.TrajectoryGroup([trajectory(1), trajectory(2)])

    groups = await art.gather_trajectory_groups(
        [whole_group(), art.TrajectoryGroup([trajectory(3)])]
    )
    assert rewards(groups) == [[1.0, 2.0], [3.0]]


async def test_nothing_to_gather_gives_nothing() -> None:
    """Empty input returns an empty list."""
    assert await art.gather_trajectory_groups([]) == []
    assert await art.gather_trajectories([]) == []


async def test_siblings_of_a_failed_rollout_run_to_their_end_before_it_is_raised() -> None:
    """The first exception comes with its own type and traceback, after all rollouts, with a note of counts."""
    gate = asyncio.Event()
    ended: list[int] = []

    async def lasting(i: int) -> art.Trajectory:
        await gate.wait()
        ended.append(i)
        return trajectory(1)

    async def run() -> list[art.TrajectoryGroup]:
        return await art.gather_trajectory_groups(
            [pending(lasting(0), fail("first")), pending(lasting(1), fail("second", gate))]
        )

    task = asyncio.create_task(run())
    await asyncio.sleep(0.001)
    assert not task.done()
    gate.set()
    with pytest.raises(RolloutError) as caught:
        await task
    assert str(caught.value) == "first"
    assert ended == [0, 1]
    assert "2 of 4 rollouts failed" in caught.value.__notes__[0]
    assert "max_exceptions is 0" in caught.value.__notes__[0]
    assert "fail" in [entry.name for entry in caught.traceback]


async def test_c028_one_of_16_rollouts_raises_and_the_group_keeps_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Siblings are not cancelled, the root traceback is logged at once, the exception is stored."""
    gate = asyncio.Event()
    rollouts = [succeed(1, gate) for _ in range(15)]
    task = asyncio.ensure_future(
        art.gather_trajectory_groups([pending(*rollouts, fail("late crash"))], max_exceptions=1)
    )
    await asyncio.sleep(0.001)
    assert not task.done()
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert "raise RolloutError(text)" in caplog.text
    gate.set()
    [group] = await task
    assert len(group) == 15
    [error] = group.exceptions
    assert error.message == "late crash"
    assert "in fail" in error.traceback


async def test_c026_a_rollout_that_fails_before_its_first_turn_is_stored_with_its_own_text() -> (
    None
):
    """Such a rollout is an exception with its text, not an empty trajectory."""
    [group] = await art.gather_trajectory_groups(
        [pending(fail("agent crashed at start"), succeed(1))], max_exceptions=1
    )
    assert len(group) == 1
    assert [error.message for error in group.exceptions] == ["agent crashed at start"]


@pytest.mark.parametrize(
    ("limit", "passes"), [(0, False), (1, False), (2, True), (0.25, False), (0.5, True)]
)
async def test_max_exceptions_is_a_count_or_a_share(limit: float, passes: bool) -> None:
    """Two of four failures pass a limit of two or of a half, and no lower one."""
    groups = [pending(fail(), succeed(1)), pending(succeed(2), fail())]
    if passes:
        gathered = await art.gather_trajectory_groups(groups, max_exceptions=limit)
        assert [(len(group), len(group.exceptions)) for group in gathered] == [(1, 1), (1, 1)]
    else:
        with pytest.raises(RolloutError):
            await art.gather_trajectory_groups(groups, max_exceptions=limit)


async def test_a_share_counts_rollouts_that_run_inside_group_coroutines() -> None:
    """A coroutine that awaits a group of rollouts counts as these rollouts, not as one more."""

    async def whole_group(failing: bool) -> art.TrajectoryGroup:
        return await pending(*(succeed(1) for _ in range(9)), fail() if failing else succeed(1))

    groups = await art.gather_trajectory_groups(
        [whole_group(True), whole_group(False)], max_exceptions=0.05
    )
    assert [len(group) for group in groups] == [9, 10]
    with pytest.raises(RolloutError, match="boom") as caught:
        await art.gather_trajectory_groups(
            [whole_group(True), whole_group(True), whole_group(False)], max_exceptions=0.06
        )
    assert "2 of 30" in caught.value.__notes__[0]


@pytest.mark.parametrize("limit", [-1, float("nan")])
async def test_a_limit_that_makes_no_sense_is_refused(limit: float) -> None:
    """A negative or NaN max_exceptions is a configuration error, before anything runs."""
    with pytest.raises(ConfigurationError, match="max_exceptions"):
        await art.gather_trajectories([], max_exceptions=limit)


async def test_a_group_coroutine_that_raises_is_one_exception_and_no_group() -> None:
    """Its siblings are returned."""

    async def broken() -> art.TrajectoryGroup:
        raise RolloutError("no group")

    groups = await art.gather_trajectory_groups([broken(), pending(succeed(1))], max_exceptions=1)
    assert rewards(groups) == [[1.0]]
    with pytest.raises(RolloutError, match="no group"):
        await art.gather_trajectory_groups([broken()])


async def test_a_rollout_that_returns_something_else_is_a_failure_that_names_it() -> None:
    """A forgotten `return` gives a TypeError, not a broken group."""

    async def forgetful() -> Any:
        return None

    with pytest.raises(TypeError, match="NoneType, not a Trajectory"):
        await art.gather_trajectory_groups([pending(forgetful())])
    with pytest.raises(TypeError, match="NoneType, not a TrajectoryGroup"):
        await art.gather_trajectory_groups([forgetful()])


async def test_a_cancellation_ends_all_rollouts_and_is_raised_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No rollout goes on behind the caller's back, and the cancellation counts as no failure."""
    ended: list[str] = []

    async def lasting(name: str) -> art.Trajectory:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(name)
        return trajectory(0)

    task = asyncio.ensure_future(
        art.gather_trajectory_groups(
            [pending(lasting("a"), lasting("b")), pending(lasting("c"))], max_exceptions=10
        )
    )
    await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(ended) == ["a", "b", "c"]
    assert caplog.records == []


@pytest.mark.parametrize("ticks", range(1, 5))
async def test_a_cancellation_in_the_first_moments_leaves_no_rollout_un_awaited(ticks: int) -> None:
    """Python has nothing to warn about when rollouts are given up before they start."""
    for gathering in (
        art.gather_trajectory_groups([pending(succeed(1), succeed(2)), pending(succeed(3))]),
        art.gather_trajectories([succeed(1), succeed(2, asyncio.Event())]),
    ):
        task = asyncio.ensure_future(gathering)
        for _ in range(ticks):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        del task, gathering
    gc.collect()  # where Python would warn


async def test_a_cancelled_error_that_nobody_asked_for_is_a_failure_of_the_rollout() -> None:
    """A rollout that awaits a cancelled task of its own does not end the gather."""

    async def self_cancelled() -> art.Trajectory:
        raise asyncio.CancelledError("my own")

    [group] = await art.gather_trajectory_groups(
        [pending(self_cancelled(), succeed(1))], max_exceptions=1
    )
    assert len(group) == 1
    assert "CancelledError" in group.exceptions[0].type


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("grouped", [True, False])
def test_an_interrupt_passes_through(error: type[BaseException], grouped: bool) -> None:
    """KeyboardInterrupt and SystemExit end the program, whatever the limit, and no rollout is left un-awaited."""

    async def interrupted() -> art.Trajectory:
        raise error

    async def main() -> None:
        rollouts = [interrupted(), succeed(1, asyncio.Event())]
        if grouped:
            await pending(*rollouts)
        else:
            await art.gather_trajectories(rollouts, max_exceptions=10)

    with pytest.raises(error):
        asyncio.run(main())
    gc.collect()  # where Python would warn


async def test_after_each_may_replace_multiply_or_drop_a_group() -> None:
    """A group, a list of groups and None are all understood."""

    async def after_each(
        group: art.TrajectoryGroup,
    ) -> art.TrajectoryGroup | list[art.TrajectoryGroup] | None:
        match group.trajectories[0].reward:
            case 0.0:
                return None
            case 1.0:
                return [group, group]
            case _:
                return art.TrajectoryGroup([trajectory(9)])

    groups = await art.gather_trajectory_groups(
        [pending(succeed(reward)) for reward in (0, 1, 2)], after_each=after_each
    )
    assert rewards(groups) == [[1.0], [1.0], [9.0]]


async def test_an_exception_of_after_each_is_raised_when_the_rollouts_have_ended() -> None:
    """It propagates, but does not cut off the rollouts of other groups."""
    gate = asyncio.Event()
    ended: list[int] = []

    async def lasting() -> art.Trajectory:
        await gate.wait()
        ended.append(1)
        return trajectory(1)

    async def judge(group: art.TrajectoryGroup) -> art.TrajectoryGroup:
        gate.set()
        raise LookupError("judge is broken")

    with pytest.raises(LookupError, match="judge is broken"):
        await art.gather_trajectory_groups(
            [pending(succeed(1)), pending(lasting())], after_each=judge
        )
    assert ended == [1]


async def test_a_failed_rollout_wins_over_the_exception_of_after_each_that_it_caused() -> None:
    """The root cause is what the caller sees."""

    async def judge(group: art.TrajectoryGroup) -> art.TrajectoryGroup:
        raise ZeroDivisionError

    with pytest.raises(RolloutError):
        await art.gather_trajectory_groups([pending(fail())], after_each=judge)


async def test_gather_trajectories_keeps_an_exception_at_its_place() -> None:
    """Within the limit, the list holds the exception object where the trajectory would be."""
    outcomes = await art.gather_trajectories([succeed(0), fail(), succeed(2)], max_exceptions=1)
    assert [type(outcome) for outcome in outcomes] == [
        art.Trajectory,
        RolloutError,
        art.Trajectory,
    ]
    with pytest.raises(RolloutError) as caught:
        await art.gather_trajectories([succeed(0), fail(), succeed(2)])
    assert "1 of 3" in caught.value.__notes__[0]


async def test_gather_trajectories_takes_rollouts_of_several_trajectories() -> None:
    """An iterable of trajectories comes back as a list, and a stranger in it is named."""

    async def several() -> Any:
        return (trajectory(reward) for reward in (1, 2))

    async def wrong() -> Any:
        return [trajectory(1), 2]

    [result] = await art.gather_trajectories([several()])
    assert [item.reward for item in result] == [1.0, 2.0]
    with pytest.raises(TypeError, match="item 1 of the rollout's result is a int"):
        await art.gather_trajectories([wrong()])


async def test_awaiting_a_group_without_a_gather_raises_its_first_failure() -> None:
    """Outside of a gather no failure is allowed, and counts do not leak into the next await."""
    for _ in range(2):
        with pytest.raises(RolloutError) as caught:
            await pending(fail(), succeed(1), succeed(2))
        assert "1 of 3" in caught.value.__notes__[0]
    assert len(await pending(succeed(1))) == 1
    assert get_gather_context() is not get_gather_context()


async def test_a_context_of_ones_own_sets_the_limit_for_groups_awaited_in_it() -> None:
    """`set_gather_context` and `wrap_group_awaitable` work together as in upstream's scripts."""
    context = GatherContext(max_exceptions=1)
    with set_gather_context(context):
        assert get_gather_context() is context
        group = await wrap_group_awaitable(pending(fail(), succeed(1)))
        assert group is not None
        assert len(group) == 1
        with pytest.raises(RolloutError):
            await wrap_group_awaitable(pending(fail("second")))
    assert context.num_failed == 2
    assert context.total == 3


async def test_running_means_cover_the_trajectories_that_have_the_metric() -> None:
    """Sums and divisors are kept per metric; what is not finite or no number stays out of the means."""
    context = GatherContext()
    record_metrics(context, art.Trajectory(reward=1, metrics={"correct": True}))
    record_metrics(context, art.Trajectory(reward=float("nan")))
    odd = art.Trajectory(reward=0)
    odd.metrics["judge"] = None  # type: ignore[assignment]  # what a user may write by accident
    record_metrics(context, odd)
    assert context.metric_sums == {"reward": 1.0, "correct": 1.0}
    assert context.metric_divisors == {"reward": 2, "correct": 1}


async def test_completion_tokens_is_the_mean_number_of_logprobs_per_choice() -> None:
    """The metric is written into the trajectory itself, as upstream does."""

    def choice(num_tokens: int) -> Any:
        token = {"token": "a", "logprob": -1.0, "bytes": None, "top_logprobs": []}
        return {
            "finish_reason": "stop",
            "index": 0,
            "message": {"role": "assistant", "content": "a"},
            "logprobs": {"content": [token] * num_tokens, "refusal": None},
        }

    async def rollout() -> art.Trajectory:
        return art.Trajectory(messages_and_choices=[choice(2), choice(5)], reward=1)

    [group] = await art.gather_trajectory_groups([pending(rollout())])
    assert group.trajectories[0].metrics == {"completion_tokens": 3.5}


async def test_the_bar_shows_mean_reward_and_exceptions_and_is_closed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Progress goes to stderr, and the bar's last line stands even when the gather raises."""
    with pytest.raises(RolloutError):
        await art.gather_trajectory_groups(
            [pending(succeed(1), succeed(2), fail())], pbar_desc="rollouts"
        )
    shown = capsys.readouterr()
    assert shown.out == ""
    last = shown.err.rstrip("\n").split("\r")[-1]
    assert last.startswith("rollouts:")
    assert "2/3" in last
    assert "reward=1.5" in last
    assert "exceptions=1" in last
    assert shown.err.endswith("\n")


async def test_max_metrics_bounds_what_the_bar_shows(capsys: pytest.CaptureFixture[str]) -> None:
    """Only the first running means are shown."""

    async def rollout() -> art.Trajectory:
        return trajectory(1, metrics={"correct": 1})

    await art.gather_trajectory_groups([pending(rollout())], max_metrics=1)
    assert "correct" not in capsys.readouterr().err


async def test_an_option_without_effect_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """`pbar_total_completion_tokens` is accepted, with a word in the log."""
    await art.gather_trajectories([succeed(1)], pbar_total_completion_tokens=True)
    assert "pbar_total_completion_tokens has no effect" in caplog.text


def test_many_event_loops_in_a_row_work() -> None:
    """Nothing of one loop is left for the next."""

    async def main() -> None:
        assert len(await art.gather_trajectories([succeed(1), succeed(2)])) == 2

    for _ in range(3):
        asyncio.run(main())


async def test_c104_gathering_works_inside_a_running_loop() -> None:
    """A notebook cell awaits it in the loop that runs already, without patching asyncio."""
    assert len(await art.gather_trajectory_groups([pending(succeed(1))])) == 1
    assert "nest_asyncio" not in sys.modules


async def test_a_gather_inside_a_group_coroutine_has_counts_of_its_own() -> None:
    """Failures that an inner gather allows are not counted by the outer one."""

    async def whole_group() -> art.TrajectoryGroup:
        return art.TrajectoryGroup(
            await art.gather_trajectories([succeed(1), fail()], max_exceptions=1)
        )

    [group] = await art.gather_trajectory_groups([whole_group()])
    assert (len(group), len(group.exceptions)) == (1, 1)


async def test_rollouts_of_an_inner_gather_count_for_the_share_of_the_outer_one() -> None:
    """A coroutine that gathers by itself stands for as many rollouts as its group has trajectories."""

    async def inner_group() -> art.TrajectoryGroup:
        return art.TrajectoryGroup([trajectory(1) for _ in range(9)])

    async def whole_group() -> art.TrajectoryGroup:
        [group] = await art.gather_trajectory_groups([inner_group()])
        return group

    async def broken() -> art.TrajectoryGroup:
        raise RolloutError

    [group] = await art.gather_trajectory_groups([whole_group(), broken()], max_exceptions=0.1)
    assert len(group) == 9


async def test_a_pending_group_that_is_given_up_warns_of_nothing() -> None:
    """`close` ends the life of rollouts that were never started."""
    group: Any = art.TrajectoryGroup([succeed(1), succeed(2)])
    group.close()


async def test_the_same_bug_in_many_rollouts_is_shown_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One traceback for each place that fails, however many rollouts fail there."""

    async def broken(i: int) -> art.Trajectory:
        if i == 7:
            raise KeyError(i)
        raise ValueError(i)

    with caplog.at_level(logging.WARNING, "art"):
        outcomes = await art.gather_trajectories((broken(i) for i in range(20)), max_exceptions=20)

    assert len(outcomes) == 20
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [
        ValueError,
        KeyError,
    ]


@pytest.mark.parametrize("gather", [art.gather_trajectories, art.gather_trajectory_groups])
async def test_what_cannot_be_awaited_is_named_before_anything_runs(gather: Any) -> None:
    """A finished value among the rollouts is told by its place, and no rollout starts."""
    started = False

    async def rollout() -> art.Trajectory:
        nonlocal started
        started = True
        return art.Trajectory(reward=1.0)

    with pytest.raises(InvalidTrajectoriesError, match=r"\[1\] is a float"):
        await gather([rollout(), 1.0])

    assert not started
