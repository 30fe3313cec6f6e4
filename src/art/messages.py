"""Choices and plain messages, told apart and converted, without importing `openai` until one is needed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeGuard, cast

import pydantic

if TYPE_CHECKING:
    from openai.types.chat.chat_completion import Choice

    from art.types import Message, MessageOrChoice, MessagesAndChoices

_ITERABLES = ("content", "tool_calls")  # as OpenAI types them
_ORDINARY = frozenset({str, list, type(None)})
_CHOICE_MODULE = "openai.types.chat.chat_completion"


def is_choice(item: object) -> TypeGuard[Choice]:
    """Tell whether an item is a Choice of the OpenAI SDK, that is, a turn that a model generated."""
    module = sys.modules.get(_CHOICE_MODULE)  # no Choice can exist before its module does
    return module is not None and isinstance(item, module.Choice)


def choice_from_dict(fields: dict[str, Any]) -> Choice:
    """Build a Choice from its plain fields as the OpenAI client does: extras kept, nothing refused.

    A finish reason that OpenAI does not know (`null`, "abort") is kept as it is.
    """
    from openai.types.chat.chat_completion import Choice

    return Choice.construct(**fields)


def normalise_item(item: object, where: str) -> MessageOrChoice:
    """Bring one item of `messages_and_choices` into one of its two forms: a message dict or a Choice.

    Args:
        item: A Choice, a message dict, a dict shaped like a choice, or a provider's object of either kind.
        where: Names the item in the error message.

    Raises:
        TypeError: The item is none of these.
    """
    if type(item) is dict and "finish_reason" not in item and "choices" not in item:
        _make_iterators_lists(item)  # by far the most common, so it comes first
        return cast("MessageOrChoice", item)
    if is_choice(item):
        return item
    given = item
    if isinstance(item, pydantic.BaseModel):
        item = item.model_dump(exclude_unset=True, warnings=False)
    if not isinstance(item, dict) or ("choices" in item and "role" not in item):
        raise TypeError(
            f"{where} is a {type(given).__name__}; expected a message dict or an OpenAI Choice "
            "(append `response.choices[0]`, not the response)"
        )
    _make_iterators_lists(item)
    if "finish_reason" in item and isinstance(item.get("message"), dict):
        return choice_from_dict(item)
    return cast("MessageOrChoice", item)


def _make_iterators_lists(message: dict[str, Any]) -> None:
    """Replace iterators in a message by lists of what they yield.

    Pydantic makes them of the parts and tool calls of a message in a field that is typed with OpenAI's params.
    They can be read but once, so the message itself is changed: else its owner would find them used up.
    """
    for key in _ITERABLES:
        value = message.get(key)
        if type(value) not in _ORDINARY and isinstance(value, Iterator):
            message[key] = list(value)


def messages_for_prompt(items: MessagesAndChoices) -> list[Message]:
    """Render turns as the message dicts that a chat endpoint or a template takes.

    A Choice becomes an assistant message with its content (missing content is the empty string) and its
    tool calls; a plain message is copied, missing content becoming the empty string. Items that were appended
    to the list later, unchecked, may also be dicts shaped like a choice or a provider's objects.
    """
    return [
        _message_of(normalise_item(item, f"messages_and_choices[{i}]"))
        for i, item in enumerate(items)
    ]


def _message_of(item: MessageOrChoice) -> Message:
    if not is_choice(item):
        message = dict(cast("dict[str, Any]", item))
        if message.get("content") is None:
            message["content"] = ""
        return cast("Message", message)
    reply: dict[str, Any] = {"role": "assistant", "content": item.message.content or ""}
    if item.message.tool_calls:
        reply["tool_calls"] = [call.model_dump(mode="json") for call in item.message.tool_calls]
    return cast("Message", reply)
