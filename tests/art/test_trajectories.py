from __future__ import annotations

import copy
import json
import pickle
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pydantic
import pytest
from openai.types.chat import ChatCompletionMessage, ChatCompletionMessageParam

import art
from art.errors import InvalidTrajectoriesError
from art.messages import is_choice
from art.trajectories import History, PendingTrajectoryGroup, PydanticException
from tests.art.factories import group, model, trajectory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

CHOICE: dict[str, Any] = {
    "finish_reason": "stop",
    "index": 0,
    "message": {"role": "assistant", "content": "a", "reasoning_content": "because"},
    "logprobs": {"content": [{"token": "a", "logprob": -0.5, "bytes": None, "top_logprobs": []}]},
    "token_ids": [5],
}


async def rollout(reward: float = 1.0) -> art.Trajectory:
    return trajectory(reward)


def full_group() -> art.TrajectoryGroup:
    full = art.Trajectory(
        messages_and_choices=[{"role": "user", "content": [{"type": "text", "text": "a"}]}, CHOICE],  # type: ignore[list-item]  # a dict shaped like a choice
        tools=[{"type": "function", "function": {"name": "look"}}],
        additional_histories=[History(messages_and_choices=[CHOICE])],  # type: ignore[list-item]  # as above
        reward=0.5,
        initial_policy_version=1,
        final_policy_version=2,
        metrics={"correct": True, "turns": 3},
        auto_metrics={"latency": 0.5},
        metadata={"scenario": {"nested": [1, None]}},
        logs=["a"],
    )
    return art.TrajectoryGroup(
        [full, trajectory(1)],
        exceptions=[ValueError("boom")],
        metadata={"id": 7},
        metrics={"difficulty": 0.5},
        logs=["b"],
    )


# --- trajectories ---


def test_items_are_brought_into_their_two_forms() -> None:
    """A dict shaped like a choice becomes a Choice, an SDK message a dict, in histories too."""
    items: list[Any] = [
        {"role": "user", "content": "a"},
        CHOICE,
        ChatCompletionMessage(role="assistant", content="b"),
    ]
    for holder in (
        art.Trajectory(messages_and_choices=items, reward=0),
        History(messages_and_choices=items),
    ):
        kinds = [is_choice(item) for item in holder.messages_and_choices]
        assert kinds == [False, True, False]
        assert holder.messages_and_choices[2] == {"role": "assistant", "content": "b"}
        assert [message["role"] for message in holder.messages()] == [
            "user",
            "assistant",
            "assistant",
        ]


def test_an_item_of_another_kind_is_named_by_its_index() -> None:
    """The error tells which item it is."""
    with pytest.raises(TypeError, match=r"messages_and_choices\[1\] is a str"):
        art.Trajectory(messages_and_choices=[CHOICE, "text"])  # type: ignore[list-item]  # the fault under test


def test_the_users_list_and_dicts_are_not_changed() -> None:
    """The trajectory has a list of its own; message dicts are the user's own objects."""
    message: Any = {"role": "user", "content": "a", "vendor": {"kept": 1}}
    items = [message]
    made = art.Trajectory(messages_and_choices=items, reward=0)
    made.messages_and_choices.append({"role": "user", "content": "b"})
    assert items == [message]
    assert made.messages_and_choices[0] is message


def test_defaults_are_not_shared() -> None:
    """Two trajectories made without metrics do not write into the same dict."""
    first, second = art.Trajectory(), art.Trajectory()
    first.metrics["a"] = 1
    first.log("line")
    assert (second.metrics, second.logs, second.reward) == ({}, [], 0.0)


@pytest.mark.parametrize("start", [None, datetime(2020, 1, 1)])  # noqa: DTZ001 - upstream's is naive
def test_finish_records_the_duration_and_returns_the_trajectory(start: datetime | None) -> None:
    """Also with a start time without a zone, as older scripts set it."""
    made = art.Trajectory() if start is None else art.Trajectory(start_time=start)
    assert made.finish() is made
    duration = made.metrics["duration"]
    assert isinstance(duration, float)
    assert (duration > 1e6) == (start is not None)
    assert "start_time" not in made.model_dump()


async def test_track_duration_adds_up_also_when_the_block_raises() -> None:
    """The metric `{name}_duration` grows with every block."""
    made = trajectory(0)
    async with made.track_duration("model"):
        pass
    first = made.metrics["model_duration"]
    with pytest.raises(ValueError, match="boom"):
        async with made.track_duration("model"):
            raise ValueError("boom")
    assert made.metrics["model_duration"] >= first >= 0.0


def test_for_logging_marks_what_the_model_said() -> None:
    """Plain data with each message marked, items appended later included."""
    made = full_group().trajectories[0]
    made.messages_and_choices.append(CHOICE)  # type: ignore[arg-type]  # what users append
    logged = made.for_logging()
    assert [message["trainable"] for message in logged["messages"]] == [False, True, True]
    assert logged["messages"][1]["reasoning_content"] == "because"
    assert json.dumps(logged)
    assert str(made).startswith("Trajectory(reward=0.5, metrics=")


# --- groups ---


def test_a_group_of_finished_items_is_a_group_at_once() -> None:
    """Trajectories and exceptions are parted; length and iteration cover the trajectories."""
    made = art.TrajectoryGroup([trajectory(1), ValueError("boom"), trajectory(2)])
    assert isinstance(made, art.TrajectoryGroup)
    assert [item.reward for item in made] == [1.0, 2.0]
    assert len(made) == 2
    [error] = made.exceptions
    assert error.type == "<class 'ValueError'>"
    assert error.message == "boom"


@pytest.mark.parametrize(
    "form",
    [list, tuple, iter, lambda items: (item for item in items), lambda items: map(id_of, items)],
)
def test_one_shot_iterators_are_consumed_once(form: Callable[[Any], Iterable[Any]]) -> None:
    """A generator gives all of its items, exceptions included."""
    items = [trajectory(1), ValueError("boom"), trajectory(2)]
    made = art.TrajectoryGroup(form(items), metadata={"id": 7})
    assert ([item.reward for item in made], len(made.exceptions)) == ([1.0, 2.0], 1)
    assert made.metadata == {"id": 7}


def id_of(item: Any) -> Any:
    return item


def test_an_exception_of_a_generator_passes() -> None:
    """A generator that fails is no group."""

    def failing() -> Iterator[art.Trajectory]:
        yield trajectory(1)
        raise LookupError("boom")

    with pytest.raises(LookupError, match="boom"):
        art.TrajectoryGroup(failing())


def test_an_empty_group_and_a_group_of_exceptions_are_groups() -> None:
    """Neither is dropped."""
    assert len(art.TrajectoryGroup([])) == 0
    only_failed = art.TrajectoryGroup([ValueError("a")], exceptions=[KeyError("b")])
    assert [error.message for error in only_failed.exceptions] == ["a", "'b'"]


def test_an_item_of_another_kind_is_named_by_its_place() -> None:
    """The error tells which item it is and what is expected."""
    with pytest.raises(InvalidTrajectoriesError, match="item 1 is a NoneType; expected a Traj"):
        art.TrajectoryGroup([trajectory(1), None])


def test_awaitables_beside_finished_items_are_refused() -> None:
    """The error names the first finished item; the rollouts given are closed without a warning."""
    mixed: list[Any] = [rollout(), trajectory(1)]
    with pytest.raises(InvalidTrajectoriesError, match="item 1 is no awaitable but others are"):
        art.TrajectoryGroup(mixed)


@pytest.mark.parametrize("form", [list, tuple, iter])
async def test_a_group_of_awaitables_is_awaited(form: Callable[[Any], Iterable[Any]]) -> None:
    """It tells how many rollouts it holds, and gives them in order."""
    pending: Any = art.TrajectoryGroup(form([rollout(1), rollout(2)]), metadata={"id": 7})
    assert isinstance(pending, PendingTrajectoryGroup)
    assert pending._num_trajectories == 2
    made = await pending
    assert [item.reward for item in made] == [1.0, 2.0]
    assert made.metadata == {"id": 7}


async def test_exceptions_given_beside_awaitables_come_after_theirs() -> None:
    """Nothing that is given is lost."""
    made = await art.TrajectoryGroup([rollout()], exceptions=[ValueError("boom")])
    assert (len(made), [error.message for error in made.exceptions]) == (1, ["boom"])


async def test_a_finished_group_awaits_to_itself() -> None:
    """Code need not know whether the rollouts have run."""
    made = group(1)
    assert await made is made


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda g: g.model_copy(deep=True)])
def test_copies_are_equal_and_have_lists_of_their_own(
    duplicate: Callable[[art.TrajectoryGroup], art.TrajectoryGroup],
) -> None:
    """Exceptions and the policy step come along; adding to a copy leaves the original alone."""
    original = full_group()
    original._policy_step = 3
    clone = duplicate(original)
    assert clone == original
    assert clone._policy_step == 3
    clone.trajectories.append(trajectory(9))
    clone.exceptions.clear()
    clone.metadata["id"] = 8
    assert (len(original), len(original.exceptions), original.metadata) == (2, 1, {"id": 7})


def test_a_shallow_copy_shares_trajectories_and_a_deep_one_does_not() -> None:
    """As `copy` promises; one object that occurs twice stays one."""
    original = full_group()
    assert copy.copy(original).trajectories[0] is original.trajectories[0]
    twice = copy.deepcopy([original, original])
    assert twice[0] is twice[1]
    assert twice[0].trajectories[0] is not original.trajectories[0]


def test_a_subclass_is_copied_as_itself() -> None:
    """A user's own kind of group is not turned into ours."""

    class Scored(art.TrajectoryGroup):
        pass

    assert type(copy.deepcopy(Scored(trajectories=[trajectory(1)]))) is Scored


@pytest.mark.parametrize("through_json", [False, True])
def test_a_dumped_group_validates_to_the_same_group(through_json: bool) -> None:
    """Choices come back as Choices with their extras, exceptions as exceptions."""
    original = full_group()
    if through_json:
        restored = art.TrajectoryGroup.model_validate_json(original.model_dump_json())
    else:
        restored = art.TrajectoryGroup.model_validate(original.model_dump())
    assert art.same_groups([restored], [original])
    choice: Any = restored.trajectories[0].messages_and_choices[1]
    assert choice.logprobs.content[0].logprob == -0.5
    assert choice.token_ids == [5]


def test_a_group_can_be_pickled() -> None:
    """As multiprocessing needs it."""
    original = full_group()
    assert art.same_groups([pickle.loads(pickle.dumps(original))], [original])


def test_logs_and_defaults_belong_to_one_group() -> None:
    """Two groups made without logs do not share them."""
    first, second = group(1), group(2)
    first.log("line")
    first.metadata["id"] = 1
    assert (first.logs, second.logs, second.metadata) == (["line"], [], {})


# --- exceptions ---


def test_an_exception_is_kept_with_its_causes_and_notes() -> None:
    """The stored traceback reads as Python would print it."""

    def fail() -> None:
        try:
            raise KeyError("key")  # noqa: TRY301 - a cause is what is tested
        except KeyError as error:
            error.add_note("while scoring")
            raise ValueError("no score") from error

    with pytest.raises(ValueError, match="no score") as caught:
        fail()
    kept = PydanticException.from_exception(caught.value)
    assert "KeyError: 'key'\nwhile scoring\n" in kept.traceback
    assert "The above exception was the direct cause" in kept.traceback
    assert kept.traceback.endswith("ValueError: no score\n")


def test_an_exception_that_cannot_render_itself_is_kept() -> None:
    """A broken __str__ does not lose the group."""

    class BrokenError(Exception):
        def __str__(self) -> str:
            raise ZeroDivisionError

    [kept] = art.TrajectoryGroup([BrokenError()]).exceptions
    assert "BrokenError" in kept.type
    assert "str() failed" in kept.message


def test_stored_exceptions_are_taken_as_they_are() -> None:
    """A text form that was read back is not wrapped again."""
    kept = PydanticException(type="<class 'E'>", message="m", traceback="t")
    made = art.TrajectoryGroup([], exceptions=[kept])
    assert made.exceptions == [kept]


class Scenario(pydantic.BaseModel):
    """A user's own model, with messages typed as OpenAI's."""

    messages: list[ChatCompletionMessageParam]


async def test_c001_messages_of_a_users_own_typed_model_are_logged_twice(tmp_path: Path) -> None:
    """Parts and tool calls that pydantic turned into one-shot iterators are plain data in the file, both times."""
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:x"}}]
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}
    messages: Any = [
        {"role": "user", "content": parts},
        {"role": "assistant", "tool_calls": [call]},
    ]
    typed = Scenario(messages=messages)
    rollout = art.Trajectory(messages_and_choices=[*typed.messages], reward=1.0)
    agent = model(tmp_path)

    for _ in range(2):
        await agent.log([rollout], step=1)

    groups = art.load_trajectories(art.model_dir(agent))
    assert len(groups) == 2
    for logged in groups:
        first, second = logged.trajectories[0].messages_and_choices
        assert first == {"role": "user", "content": parts}
        assert second == {"role": "assistant", "tool_calls": [call]}
    own: Any = typed.messages[0]
    assert list(own["content"]) == parts  # not used up
