from __future__ import annotations

from typing import Any

import pydantic
import pytest
from openai.types.chat.chat_completion import Choice

import art
from art.utils.litellm import convert_litellm_choice_to_openai


class Message(pydantic.BaseModel):
    """Has the fields of LiteLLM's Message; installing LiteLLM for this would take 200 MB."""

    model_config = pydantic.ConfigDict(extra="allow")

    content: str | None
    role: str
    tool_calls: list[dict[str, Any]] | None = None
    function_call: dict[str, Any] | None = None


class Choices(pydantic.BaseModel):
    """Has the fields of LiteLLM's Choices."""

    model_config = pydantic.ConfigDict(extra="allow")

    finish_reason: str
    index: int
    message: Message
    logprobs: dict[str, Any] | None = None


class StreamingChoices(pydantic.BaseModel):
    """Has the fields of LiteLLM's StreamingChoices."""

    finish_reason: str | None = None
    index: int = 0
    delta: dict[str, Any] = {}


CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "'}}


def choice(**fields: Any) -> Choices:
    reasoning: dict[str, Any] = {
        "reasoning_content": "because"
    }  # a field that only some providers send
    message = Message(content="a", role="assistant", tool_calls=[CALL], **reasoning)
    return Choices(finish_reason="stop", index=0, message=message, **fields)


def test_content_tool_calls_logprobs_and_extras_are_kept() -> None:
    """The result is an OpenAI Choice that says the same, cut-off tool arguments to the byte."""
    token = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}
    converted = convert_litellm_choice_to_openai(
        choice(logprobs={"content": [token]}, token_ids=[5])
    )
    assert isinstance(converted, Choice)
    assert converted.finish_reason == "stop"
    assert converted.message.content == "a"
    [call] = converted.message.tool_calls or []
    assert call.model_dump(exclude_none=True) == CALL
    assert converted.message.model_extra == {"reasoning_content": "because"}
    assert converted.logprobs is not None
    assert converted.logprobs.content is not None
    assert converted.logprobs.content[0].logprob == -0.5
    assert converted.model_extra == {"token_ids": [5]}


def test_the_result_is_a_trainable_turn_of_a_trajectory() -> None:
    """A trajectory takes it, and dumping it raises no serializer warning."""
    converted = convert_litellm_choice_to_openai(choice())
    trajectory = art.Trajectory(messages_and_choices=[converted], reward=1)
    assert trajectory.messages_and_choices == [converted]
    assert trajectory.model_dump(mode="json")["messages_and_choices"][0]["index"] == 0


def test_a_streamed_choice_and_other_objects_are_refused() -> None:
    """The error tells what to pass."""
    wrong_ones: list[Any] = [StreamingChoices(), {"message": {}}, None]
    for wrong in wrong_ones:
        with pytest.raises(TypeError, match="without stream=True"):
            convert_litellm_choice_to_openai(wrong)


def test_only_an_assistants_turn_is_taken() -> None:
    """A choice with another role is no model's turn."""
    odd = Choices(finish_reason="stop", index=0, message=Message(content="a", role="user"))
    with pytest.raises(ValueError, match="role 'user'"):
        convert_litellm_choice_to_openai(odd)
