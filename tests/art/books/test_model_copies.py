from __future__ import annotations

import pickle
from typing import Any

import pytest
from openai.types.chat.chat_completion import Choice

import art
from art.books.model_copies import copy_with
from art.trajectories import History


def choice(**extras: Any) -> Choice:
    reply = {"role": "assistant", "content": "a", "note": "b"}
    return Choice.model_validate({"finish_reason": "stop", "index": 0, "message": reply, **extras})


@pytest.mark.parametrize(
    ("pattern", "values"),
    [
        (choice(), {"index": 3}),
        (choice(stop_reason=None), {"finish_reason": "length", "logprobs": None}),
        (choice().message, {"content": "c", "role": "assistant"}),
        (History(messages_and_choices=[]), {"tools": []}),
        (art.Trajectory(messages_and_choices=[]), {"reward": 1.0}),
    ],
)
def test_a_copy_is_what_pydantic_makes_of_it(pattern: Any, values: dict[str, Any]) -> None:
    """Fields, extras and the text of a pickle are those of `model_copy`; a field set anew counts as set."""
    for name in values:
        pattern.__pydantic_fields_set__.add(name)

    copy = copy_with(pattern, values)
    expected = pattern.model_copy(update=values)

    assert copy == expected
    assert list(vars(copy)) == list(vars(expected))
    assert copy.model_fields_set == expected.model_fields_set
    assert copy.__pydantic_extra__ == expected.__pydantic_extra__
    assert copy.__pydantic_private__ == expected.__pydantic_private__
    assert pickle.loads(pickle.dumps(copy)) == expected


def test_a_copy_can_be_changed_without_its_pattern() -> None:
    """Setting a field or an extra of a copy leaves the pattern alone."""
    pattern = choice(stop_reason=None)
    before = pattern.model_copy(deep=True)

    copy = copy_with(pattern, {"index": 1})
    copy.logprobs = None
    copy.provider_note = "x"  # type: ignore[attr-defined] # an extra

    assert pattern == before
    assert pattern.model_fields_set == before.model_fields_set
