"""Choices that are alike but for their texts, built as copies of one that pydantic validated.

Nearly all Choices of a file are. What one of their shape looks like pydantic decides, once; a copy differs in
plain texts alone (content; id, name and arguments of tool calls), which validation would keep as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import pydantic

from art.books.model_copies import copy_with
from art.books.plain_json import PLAIN_SCALARS, parse_exact, parse_json

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
        if shape not in self._patterns:
            if len(self._patterns) >= _MAX_SHAPES:
                return None
            self._patterns[shape] = self._pattern(*shape)
        pattern = self._patterns[shape]
        if pattern is None:
            return None
        texts: dict[str, Any] = {}
        if content is not None:
            texts["content"] = content
        if calls is not None:
            texts["tool_calls"] = _calls(parse_json(calls), pattern.message.tool_calls)
            if texts["tool_calls"] is None:
                return None
        return copy_with(pattern, {"message": copy_with(pattern.message, texts)})

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


def _calls(calls: Any, pattern: Any) -> list[Any] | None:
    """Return tool calls as copies of the pattern's; None if one is unlike it."""
    if type(calls) is not list:
        return None
    [like] = pattern
    built = []
    for call in calls:
        try:
            function = call["function"]
            texts = (call["id"], function["name"], function["arguments"])
            is_alike = call["type"] == "function" and len(call) == 3 and len(function) == 2
        except (TypeError, LookupError):
            return None
        if not is_alike or not set(map(type, texts)) <= {str}:
            return None
        built.append(
            copy_with(like, {"id": texts[0], "function": copy_with(like.function, function)})
        )
    return built
