"""Tool calls as the column `calls` of the trajectory file, which repeats them for queries."""

from __future__ import annotations

import functools
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from art.books.plain_json import json_text, shown
from art.books.trajectory_schema import CALL, MESSAGE

if TYPE_CHECKING:
    from collections.abc import Sequence


# Id, name and arguments of a call; the arguments are never parsed.
_Texts: TypeAlias = tuple[Any, Any, Any]


class CallColumns:
    """The tool calls of many messages."""

    def __init__(self) -> None:
        self._texts: dict[int, list[_Texts]] = {}  # by index of the message

    def put(self, i: int, calls: Sequence[Any]) -> None:
        """Put the plain tool calls of message `i`; no later message has any yet."""
        self._texts[i] = [*map(_texts_of_call, calls)]

    def array(self, num_messages: int) -> pa.ListArray:
        """Return the calls of each message, null where it has none."""
        if not self._texts:
            return pa.nulls(num_messages, MESSAGE.field("calls").type)
        columns = zip(*chain.from_iterable(self._texts.values()), strict=True)
        structs = pa.StructArray.from_arrays([*map(_text_array, columns)], fields=list(CALL))
        *starts, end = accumulate(map(len, self._texts.values()), initial=0)
        offsets = dict(zip(self._texts, starts, strict=True))
        all_offsets = pa.array([*map(offsets.get, range(num_messages)), end], pa.int32())
        return pa.ListArray.from_arrays(all_offsets, structs)


def _texts_of_call(call: Any) -> _Texts:
    try:
        function = call["function"]
        return call["id"], function["name"], function["arguments"]
    except (TypeError, KeyError):
        return _texts_of_odd_call(call)


def _texts_of_odd_call(call: object) -> _Texts:
    fields = call if isinstance(call, dict) else {}
    function, custom = fields.get("function"), fields.get("custom")
    name = arguments = None
    if isinstance(function, dict):
        name, arguments = function.get("name"), function.get("arguments")
    elif isinstance(custom, dict):
        name, arguments = custom.get("name"), custom.get("input")
    return fields.get("id"), name, arguments


def _text_array(values: Sequence[Any]) -> pa.Array:
    try:
        return pa.array(values, pa.string())
    except (
        TypeError,
        UnicodeEncodeError,
    ):  # not all of them are texts, or some hold lone surrogates
        return pa.array([*map(_as_text, values)], pa.string())


def _as_text(value: object) -> str | None:
    if value is None:
        return None
    return shown(value if isinstance(value, str) else json_text(value))


def ordinary_calls(calls: object) -> list[dict[str, Any]] | None:
    """Return tool calls of the OpenAI client as `plain` does, in a quarter of the time; None if one is unusual.

    Most of what agents say are such calls.
    """
    if not isinstance(calls, list) or not calls or type(calls[0]) is dict:
        return None
    call_type, function_type = _call_types()
    plain_calls = []
    for call in calls:
        if type(call) is not call_type or type(call.__dict__.get("function")) is not function_type:
            return None
        fields, function = call.__dict__, call.function.__dict__
        if call.__pydantic_extra__ or call.function.__pydantic_extra__:
            return None
        if len(fields) != 3 or len(function) != 2:
            return None
        name, arguments = function.values()
        if not type(fields["id"]) is type(fields["type"]) is type(name) is type(arguments) is str:
            return None
        plain_calls.append({**fields, "function": function})
    return plain_calls


@functools.cache
def _call_types() -> tuple[type[Any], type[Any]]:
    from openai.types.chat import chat_completion_message_function_tool_call as module

    return module.ChatCompletionMessageFunctionToolCall, module.Function
