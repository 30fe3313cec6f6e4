"""Tool calls as the column `calls` of the trajectory file, which repeats them for queries."""

from __future__ import annotations

import functools
from itertools import accumulate, chain
from json.encoder import encode_basestring as quoted
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from art.books.plain_json import json_text, shown
from art.books.trajectory_schema import CALL, MESSAGE

if TYPE_CHECKING:
    from collections.abc import Sequence


# Id, name and arguments of a call; the arguments are never parsed.
Texts: TypeAlias = tuple[Any, Any, Any]

_CALL_FIELDS = ("id", "function", "type", "arguments", "name")  # those of the function come last


class CallColumns:
    """The tool calls of many messages."""

    def __init__(self) -> None:
        self._texts: dict[int, list[Texts]] = {}  # by index of the message

    def put(self, i: int, calls: Sequence[Any]) -> None:
        """Put the plain tool calls of message `i`; no later message has any yet."""
        self.put_texts(i, [*map(_texts_of_call, calls)])

    def put_texts(self, i: int, texts: list[Texts]) -> None:
        """Put the tool calls of message `i`, of which `ordinary_calls` found the texts."""
        self._texts[i] = texts

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


def _texts_of_call(call: Any) -> Texts:
    try:
        function = call["function"]
        return call["id"], function["name"], function["arguments"]
    except (TypeError, KeyError):
        return _texts_of_odd_call(call)


def _texts_of_odd_call(call: object) -> Texts:
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


def ordinary_calls(calls: object) -> tuple[str, list[Texts]] | None:
    """Return the JSON of tool calls as `json_text(plain(...))` gives it, and their texts, in a quarter of the time.

    Most of what agents say are such calls of the OpenAI client. None where one is unusual, or where the JSON
    cannot be stored as it is.
    """
    if type(calls) is not list or not calls:
        return None
    call_type, function_type = _call_types()
    all_json, all_texts = [], []
    for call in calls:
        if type(call) is not call_type or call.__pydantic_extra__:
            return None
        fields = call.__dict__
        function = fields.get("function")
        if type(function) is not function_type or function.__pydantic_extra__:
            return None
        if (*fields, *function.__dict__) != _CALL_FIELDS:
            return None
        (call_id, _, kind), (arguments, name) = fields.values(), function.__dict__.values()
        if not type(call_id) is type(kind) is type(name) is type(arguments) is str:
            return None
        all_json.append(
            f'{{"id":{quoted(call_id)},"function":{{"arguments":{quoted(arguments)},'
            f'"name":{quoted(name)}}},"type":{quoted(kind)}}}'
        )
        all_texts.append((call_id, name, arguments))
    text = f"[{','.join(all_json)}]"
    return (text, all_texts) if shown(text) == text else None


@functools.cache
def _call_types() -> tuple[type[Any], type[Any]]:
    from openai.types.chat import chat_completion_message_function_tool_call as module

    return module.ChatCompletionMessageFunctionToolCall, module.Function
