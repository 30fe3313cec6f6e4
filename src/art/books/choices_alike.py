"""Choices that are alike but for their texts, built as copies of one that pydantic validated.

Nearly all Choices of a file are. What one of their shape looks like pydantic decides, once; a copy differs in
its content, which validation would keep as it is, and in its tool calls, which pydantic builds.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeAlias

import pydantic

from art.books.model_copies import copy_with
from art.books.plain_json import PLAIN_SCALARS, parse_exact

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from openai.types.chat.chat_completion import Choice

# Role, finish reason, `extra`; is there content, are there tool calls.
_Shape: TypeAlias = tuple[str | None, str | None, str | None, bool, bool]

# Where nearly every Choice has a shape of its own, patterns would only cost time.
_MAX_SHAPES = 64
_NESTED_IN_REPLY = ("annotations", "audio", "function_call", "tool_calls")
_CALL = {"id": "", "function": {"name": "", "arguments": ""}, "type": "function"}


class ChoicesAlike:
    """Builds Choices by patterns.

    Args:
        validate: Builds Choices from their plain fields.
    """

    def __init__(self, validate: Callable[[list[dict[str, Any]]], Sequence[Choice]]) -> None:
        self._validate = validate
        self._patterns: dict[_Shape, Choice | None] = {}

    def build(
        self,
        role: str | None,
        content: str | None,
        calls: str | None,
        finish_reason: str | None,
        extra: str | None,
    ) -> Choice | None:
        """Return the Choice that these columns tell of, None if it is no copy of a pattern."""
        shape = (role, finish_reason, extra, content is not None, calls is not None)
        try:
            pattern = self._patterns[shape]
        except KeyError:
            if len(self._patterns) >= _MAX_SHAPES:
                return None
            pattern = self._patterns[shape] = self._pattern(*shape)
        if pattern is None:
            return None
        texts: dict[str, Any] = {}
        if content is not None:
            texts["content"] = content
        if calls is not None:
            try:
                texts["tool_calls"] = self._parse_calls(calls)
            except pydantic.ValidationError:
                return None
        return copy_with(pattern, {"message": copy_with(pattern.message, texts)})

    @functools.cached_property
    def _parse_calls(self) -> Callable[[str], list[Any]]:
        """What builds tool calls from their JSON, in one step; what is none of the usual kind is an error."""
        from openai.types.chat import chat_completion_message_function_tool_call as module

        adapter = pydantic.TypeAdapter(list[module.ChatCompletionMessageFunctionToolCall])
        parse: Callable[[str], list[Any]] = adapter.validator.validate_json  # quicker than its own
        return parse

    def _pattern(
        self,
        role: str | None,
        finish_reason: str | None,
        extra: str | None,
        has_content: bool,
        has_calls: bool,
    ) -> Choice | None:
        rest = parse_exact(extra) if extra is not None else {}
        reply = rest.pop("message", {})
        if not isinstance(reply, dict) or not is_kept_by_validation(rest, reply):
            return None
        # Lists and dicts must not be the same in all copies, and `extra` may override the texts.
        values = {*map(type, rest.values()), *map(type, reply.values())}
        if not values <= PLAIN_SCALARS or not reply.keys().isdisjoint(("content", "tool_calls")):
            return None
        message = {
            **({"role": role} if role is not None else {}),
            **({"content": ""} if has_content else {}),
            **({"tool_calls": [_CALL]} if has_calls else {}),
            **reply,
        }
        captured = {} if finish_reason is None else {"finish_reason": finish_reason}
        try:
            return self._validate([{**captured, "message": message, **rest}])[0]
        except pydantic.ValidationError:  # say, a finish reason that OpenAI does not know
            return None


def is_kept_by_validation(rest: dict[str, Any], reply: dict[str, Any]) -> bool:
    """Tell whether what the columns do not capture holds nothing that pydantic would convert ("1" to 1).

    Args:
        rest: What they do not capture of a Choice.
        reply: What they do not capture of its message.
    """
    if type(rest.get("index")) is not int or rest.get("logprobs") is not None:
        return False
    return not reply or not any(map(reply.get, _NESTED_IN_REPLY))
