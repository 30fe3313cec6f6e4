from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given

import art
from art.errors import ArtError, InvalidTrajectoriesError
from art.messages import choice_from_dict, is_choice
from art.utils.trajectory_json import (
    deserialize_trajectory_groups,
    dict_to_history,
    dict_to_message_or_choice,
    dict_to_trajectory,
    dict_to_trajectory_group,
    history_to_dict,
    message_or_choice_to_dict,
    serialize_trajectory_groups,
    trajectory_group_to_dict,
    trajectory_to_dict,
)
from tests.art.upstream_files import DIRECTORY, groups_in
from tests.strategies import group_lists

SURROGATE_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
CHOICE = {
    "finish_reason": "stop",
    "index": 0,
    "logprobs": {"content": [{"token": "a", "logprob": -1.0, "bytes": None, "top_logprobs": []}]},
    "message": {"role": "assistant", "content": "a", "vendor": 1},
    "token_ids": [1],
}
UPSTREAM_KEYS = [
    "reward",
    "metrics",
    "metadata",
    "messages_and_choices",
    "tools",
    "additional_histories",
    "logs",
]


@given(group_lists)
def test_groups_survive_jsonl(groups: list[art.TrajectoryGroup]) -> None:
    """Whatever the types hold comes back, but for two lone surrogates in a row, which JSON joins."""
    documents = [trajectory_group_to_dict(group) for group in groups]

    assert art.same_groups([dict_to_trajectory_group(document) for document in documents], groups)
    if not SURROGATE_PAIR.search(json.dumps(documents, ensure_ascii=False)):
        text = serialize_trajectory_groups(groups)
        assert art.same_groups(deserialize_trajectory_groups(text), groups)


@pytest.mark.parametrize("name", ["0.5.18.jsonl", "0.5.23.jsonl", "2025-06.yaml"])
def test_c160_text_of_upstream_is_read(name: str) -> None:
    """JSONL and YAML alike, as upstream's function reads both."""
    text = (DIRECTORY / name).read_text()
    assert art.same_groups(deserialize_trajectory_groups(text), groups_in(name))


def test_the_text_has_upstreams_form() -> None:
    """One group a line, the keys of upstream in their places; what it left out follows."""
    groups = groups_in("0.5.23.jsonl")
    theirs = [json.loads(line) for line in (DIRECTORY / "0.5.23.jsonl").read_text().splitlines()]
    ours = [json.loads(line) for line in serialize_trajectory_groups(groups).split("\n")]
    for our, their in zip(ours, theirs, strict=True):
        our_rollouts, their_rollouts = our.pop("trajectories"), their.pop("trajectories")
        assert {key: our[key] for key in their} == their  # upstream leaves out what is empty
        for a, b in zip(our_rollouts, their_rollouts, strict=True):
            assert list(a)[: len(UPSTREAM_KEYS)] == UPSTREAM_KEYS
            assert json.dumps({key: a[key] for key in b}, sort_keys=True) == json.dumps(
                b, sort_keys=True
            )


def test_single_values_go_both_ways() -> None:
    """Message, Choice, history and trajectory have functions of their own."""
    message: dict[str, Any] = {"role": "user", "content": "q", "vendor": {"x": None}}
    choice = choice_from_dict(CHOICE)
    assert message_or_choice_to_dict(message) == message  # type: ignore[arg-type]
    assert message_or_choice_to_dict(choice) == CHOICE
    assert is_choice(dict_to_message_or_choice(CHOICE))
    assert dict_to_message_or_choice(message) is message
    trajectory = art.Trajectory(messages_and_choices=[choice], tools=[], reward=1)
    history = history_to_dict(trajectory)
    assert history == {"messages_and_choices": [CHOICE], "tools": []}
    assert history_to_dict(dict_to_history(history)) == history
    again = dict_to_trajectory(trajectory_to_dict(trajectory))
    assert art.same_groups([art.TrajectoryGroup([again])], [art.TrajectoryGroup([trajectory])])


def test_a_trajectory_of_another_version_may_lack_fields() -> None:
    """Releases of 2025 wrote neither tools nor further histories."""
    trajectory = dict_to_trajectory({"messages_and_choices": [], "reward": 2})
    assert (trajectory.reward, trajectory.metrics, trajectory.logs) == (2.0, {}, [])


def test_nothing_is_changed_by_writing_it() -> None:
    """Logprobs stay in a dict that was passed; an iterator of content parts is not spent."""
    parts = [{"type": "text", "text": "q"}]
    item: dict[str, Any] = {"role": "user", "content": iter(parts), "logprobs": [1]}
    trajectory = art.Trajectory(messages_and_choices=[item], reward=0)  # type: ignore[list-item]
    first = trajectory_to_dict(trajectory)
    assert first["messages_and_choices"] == [{"role": "user", "content": parts, "logprobs": [1]}]
    assert trajectory_to_dict(trajectory) == first
    assert item["logprobs"] == [1]


def test_what_has_no_json_form_is_refused() -> None:
    """The message names the field."""
    group = art.TrajectoryGroup([], metadata={"model": object()})
    with pytest.raises(InvalidTrajectoriesError, match=r"metadata .*object"):
        serialize_trajectory_groups([group])


@pytest.mark.parametrize("text", ["{", '{"trajectories": 1}', "a: 1", "- 1", "["])
def test_other_text_is_refused(text: str) -> None:
    """With an error of this package, whatever the parsers raise."""
    with pytest.raises(ArtError, match="this holds no trajectory groups"):
        deserialize_trajectory_groups(text)
