from __future__ import annotations

from typing import Any

import pydantic
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionMessage
from openai.types.chat.chat_completion import Choice

from art.messages import choice_from_dict, is_choice, messages_for_prompt, normalise_item

TOOL_CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": '}}
CHOICE: dict[str, Any] = {
    "finish_reason": "tool_calls",
    "index": 0,
    "message": {
        "role": "assistant",
        "content": None,
        "tool_calls": [TOOL_CALL],
        "reasoning_content": "because",
    },
    "token_ids": [1, 2],
}


def test_a_dict_shaped_like_a_choice_becomes_one() -> None:
    """Unknown provider fields and cut-off tool arguments are kept to the byte."""
    choice = normalise_item(CHOICE, "item")
    assert is_choice(choice)
    assert choice.model_extra == {"token_ids": [1, 2]}
    assert choice.message.model_extra == {"reasoning_content": "because"}
    [call] = choice.message.tool_calls or []
    assert call.to_dict() == TOOL_CALL


@pytest.mark.parametrize("reason", [None, "abort"])
def test_a_finish_reason_that_openai_does_not_know_is_kept(reason: str | None) -> None:
    """Servers send such reasons; the turn is no less a turn."""
    assert choice_from_dict({**CHOICE, "finish_reason": reason}).finish_reason == reason


def test_a_choice_and_a_message_dict_stay_the_same_object() -> None:
    """The user's own dict is neither copied nor changed."""
    choice = choice_from_dict(CHOICE)
    message: dict[str, Any] = {"role": "user", "content": [{"type": "text", "text": "a"}]}
    assert normalise_item(choice, "item") is choice
    assert normalise_item(message, "item") is message


def test_a_subclass_of_choice_is_a_choice() -> None:
    """Parsed choices of the SDK count."""

    class ParsedChoice(Choice):
        pass

    parsed = ParsedChoice.construct(**CHOICE)
    assert is_choice(parsed)
    assert normalise_item(parsed, "item") is parsed


def test_a_message_object_of_the_sdk_becomes_a_message_dict() -> None:
    """It was not given with its finish reason, so it is no turn to train on; unset fields stay away."""
    message = ChatCompletionMessage(role="assistant", content="a")
    assert normalise_item(message, "item") == {"role": "assistant", "content": "a"}


def test_a_foreign_choice_object_becomes_a_choice() -> None:
    """An object of another SDK with the same fields is taken by its fields, without serializer warnings."""

    class ForeignMessage(pydantic.BaseModel):
        role: str = "assistant"
        content: str = ""

    class ForeignChoice(pydantic.BaseModel):
        finish_reason: str
        index: int
        message: ForeignMessage

    foreign = ForeignChoice(
        finish_reason="stop", index=0, message=ForeignMessage(role="assistant", content="a")
    )
    choice = normalise_item(foreign, "item")
    assert is_choice(choice)
    assert choice.message.content == "a"


@pytest.mark.parametrize("item", ["text", None, 3, ["role", "user"]])
def test_anything_else_is_refused_by_name_and_place(item: object) -> None:
    """The error names the place and the type, and what to append instead."""
    with pytest.raises(TypeError, match=rf"item 7 is a {type(item).__name__}"):
        normalise_item(item, "item 7")


def test_a_whole_response_is_refused_with_a_hint() -> None:
    """The common slip of appending the response is told apart."""
    response = ChatCompletion.construct(id="r", choices=[CHOICE], model="m", created=0)
    with pytest.raises(TypeError, match=r"response\.choices\[0\]"):
        normalise_item([response], "item")


def test_prompt_messages_have_content_and_tool_calls() -> None:
    """A Choice becomes an assistant message; missing and null content become the empty string."""
    items: list[Any] = [
        {"role": "user", "content": "a"},
        choice_from_dict(CHOICE),
        {"role": "assistant", "tool_calls": [TOOL_CALL]},
        {"role": "assistant", "content": None},
    ]
    assert messages_for_prompt(items) == [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": [TOOL_CALL]},
        {"role": "assistant", "content": "", "tool_calls": [TOOL_CALL]},
        {"role": "assistant", "content": ""},
    ]
    assert items[3] == {"role": "assistant", "content": None}


def test_prompt_messages_are_copies() -> None:
    """Changing what a template was given does not change the trajectory."""
    message: Any = {"role": "user", "content": "a"}
    [shown] = messages_for_prompt([message])
    shown["content"] = "b"
    assert message["content"] == "a"


def test_items_appended_later_are_understood_too() -> None:
    """A dict shaped like a choice and a message object are rendered as if given at construction."""
    items: list[Any] = [CHOICE, ChatCompletionMessage(role="assistant", content="b")]
    assert [message.get("content") for message in messages_for_prompt(items)] == ["", "b"]
    with pytest.raises(TypeError, match=r"messages_and_choices\[1\]"):
        messages_for_prompt([CHOICE, 3])  # type: ignore[list-item]  # the fault under test
