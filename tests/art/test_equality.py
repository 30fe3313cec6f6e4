from __future__ import annotations

import copy
import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from openai.types.chat.chat_completion import Choice
from openai.types.chat.chat_completion_message import ChatCompletionMessage

import art
from art.equality import same_groups, same_items, same_values
from art.messages import choice_from_dict
from art.trajectories import History, PydanticException
from tests.strategies import group_lists


def choice(**fields: Any) -> Choice:
    base = {"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": "a"}}
    return choice_from_dict({**base, **fields})


def group() -> art.TrajectoryGroup:
    return art.TrajectoryGroup(
        [
            art.Trajectory(
                messages_and_choices=[{"role": "user", "content": "q"}, choice(token_ids=[1])],
                additional_histories=[History(messages_and_choices=[choice()])],
                reward=1.0,
                metrics={"m": 1},
                metadata={"k": [1, {"n": None}]},
                logs=["line"],
            )
        ],
        exceptions=[PydanticException(type="E", message="m", traceback="t")],
        metadata={"task": "a"},
        metrics={"judge": 0.5},
        logs=["g"],
    )


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(group_lists)
def test_a_copy_is_the_same(groups: list[art.TrajectoryGroup]) -> None:
    """Whatever the groups hold, a deep copy of them is the same."""
    assert same_groups(groups, copy.deepcopy(groups))


@pytest.mark.parametrize(
    "change",
    [
        lambda g: g.trajectories.append(art.Trajectory()),
        lambda g: g.trajectories.clear(),
        lambda g: g.exceptions.clear(),
        lambda g: setattr(g.exceptions[0], "traceback", "other"),
        lambda g: g.metadata.update(task="b"),
        lambda g: g.metadata.update(more=None),
        lambda g: g.metrics.update(judge=0.25),
        lambda g: g.logs.append("h"),
        lambda g: setattr(g.trajectories[0], "reward", 2.0),
        lambda g: setattr(g.trajectories[0], "tools", []),
        lambda g: setattr(g.trajectories[0], "initial_policy_version", 0),
        lambda g: setattr(g.trajectories[0], "final_policy_version", 0),
        lambda g: g.trajectories[0].metrics.update(m=1.0),
        lambda g: g.trajectories[0].metrics.update(m=True),
        lambda g: g.trajectories[0].auto_metrics.update(m=1),
        lambda g: g.trajectories[0].metadata["k"][1].clear(),
        lambda g: g.trajectories[0].logs.append(""),
        lambda g: g.trajectories[0].additional_histories.clear(),
        lambda g: setattr(g.trajectories[0].additional_histories[0], "tools", []),
        lambda g: g.trajectories[0].messages_and_choices.reverse(),
        lambda g: g.trajectories[0].messages_and_choices[0].update(name=None),
        lambda g: setattr(g.trajectories[0].messages_and_choices[1], "finish_reason", "length"),
        lambda g: setattr(g.trajectories[0].messages_and_choices[1], "token_ids", [1.0]),
        lambda g: setattr(g.trajectories[0].messages_and_choices[1], "more", None),
        lambda g: setattr(g.trajectories[0].messages_and_choices[1].message, "content", None),
    ],
)
def test_any_change_of_a_value_shows(change: Callable[[art.TrajectoryGroup], object]) -> None:
    """A difference in any field makes two groups differ, both ways round."""
    changed = group()
    change(changed)

    assert same_groups([group()], [group()])
    assert not same_groups([group()], [changed])
    assert not same_groups([changed], [group()])


def test_the_number_and_order_of_groups_count() -> None:
    """An empty group is a group, and groups have an order."""
    empty = art.TrajectoryGroup([])

    assert not same_groups([group()], [group(), empty])
    assert not same_groups([group(), empty], [empty, group()])
    assert same_groups([empty], [art.TrajectoryGroup([])])
    assert not same_groups([empty], [])


def test_nan_equals_nan_and_scalar_types_are_told_apart() -> None:
    """NaN is the same as NaN; 1, 1.0 and True are three values, as are 0 and None."""
    assert same_values(math.nan, -math.nan)
    assert not same_values(math.nan, 0.0)
    distinct: list[Any] = [0, 0.0, False, None, "", [], {}, "0"]
    for i, a in enumerate(distinct):
        for j, b in enumerate(distinct):
            assert same_values(a, b) == (i == j)


def test_numpy_scalars_equal_the_numbers_they_hold_and_tuples_lists() -> None:
    """What is stored as the same JSON is the same."""
    assert same_values({"a": np.float32(0.5), "b": np.int64(1)}, {"a": 0.5, "b": 1})
    assert not same_values(np.float64(1.0), 1)
    assert same_values((1, (2,)), [1, [2]])


def test_a_choice_differs_from_a_message_dict() -> None:
    """A model's turn is trained on, a message is not, whatever their text."""
    message: Any = {"role": "assistant", "content": "a"}
    hollow: Any = {"finish_reason": "stop", "message": None}

    assert not same_items([choice()], [message])
    assert not same_items([choice_from_dict(hollow)], [hollow])


def test_a_default_that_was_set_equals_one_that_was_not() -> None:
    """Only what a reader of the field can see counts."""
    explicit = choice(logprobs=None)
    explicit.message.tool_calls = None

    assert same_items([choice()], [explicit])


def test_a_subclass_equals_its_base_with_the_same_fields() -> None:
    """A wrapper's Choice that shows the same fields is the same; an unset None of its own does not count."""

    class WrapperMessage(ChatCompletionMessage):
        note: str | None = None

    bare = Choice(
        index=0, finish_reason="stop", message=WrapperMessage(role="assistant", content="a")
    )
    noted = Choice(
        index=0,
        finish_reason="stop",
        message=WrapperMessage(role="assistant", content="a", note="n"),
    )

    assert same_items([choice()], [bare])
    assert not same_items([choice()], [noted])
    assert not same_items([noted], [choice()])


def test_start_time_does_not_count() -> None:
    """When the object was made is not part of what it says."""
    first, second = group(), group()
    second.trajectories[0].start_time = datetime(2020, 1, 1, tzinfo=UTC)

    assert same_groups([first], [second])


def test_deep_and_cyclic_values_are_compared_without_recursion() -> None:
    """Neither depth nor a loop makes the comparison fail."""
    deep: list[Any] = []
    other: list[Any] = [1]
    for _ in range(50_000):
        deep, other = [deep], [other]
    loop: list[Any] = []
    loop.append(loop)

    assert same_values(deep, deep)
    assert not same_values(deep, other)
    assert same_values(loop, loop)
