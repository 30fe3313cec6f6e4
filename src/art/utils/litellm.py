"""Choices of LiteLLM as Choices of the OpenAI SDK, without importing LiteLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pydantic

from art.messages import choice_from_dict

if TYPE_CHECKING:
    from openai.types.chat.chat_completion import Choice


def convert_litellm_choice_to_openai(litellm_choice: Any) -> Choice:
    """Convert a choice of a LiteLLM response so that a trajectory can hold it and train on it.

    Tool calls, logprobs and whatever else the provider sent are kept.

    Args:
        litellm_choice: `response.choices[0]` of a response that was not streamed.

    Raises:
        TypeError: It is no such choice.
        ValueError: It is not an assistant's turn.
    """
    fields = (
        litellm_choice.model_dump(warnings=False)
        if isinstance(litellm_choice, pydantic.BaseModel)
        else {}
    )
    message = fields.get("message")
    if not isinstance(message, dict):
        raise TypeError(
            f"a {type(litellm_choice).__name__} is no complete LiteLLM choice; pass "
            "`response.choices[0]` of a call without stream=True"
        )
    if message.get("role") != "assistant":
        raise ValueError(
            f"the choice's message has role {message.get('role')!r}; only an assistant's turn can be trained"
        )
    return choice_from_dict(fields)
