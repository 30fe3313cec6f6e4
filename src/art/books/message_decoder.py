"""Message structs of the trajectory file as turns of conversations again; see `message_encoder`."""

from __future__ import annotations

import functools
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

import pydantic

from art.books.choices_alike import ChoicesAlike, is_kept_by_validation
from art.books.long_texts import put_back
from art.books.plain_json import parse_exact, parse_json
from art.books.token_columns import logprobs_from_columns
from art.books.trajectory_schema import MESSAGE
from art.messages import choice_from_dict

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from openai.types.chat.chat_completion import Choice

    from art.types import MessagesAndChoices


def decode_histories(
    structs: pa.StructArray,
    lengths: Sequence[int],
    long_texts: Sequence[list[str] | None],
) -> list[MessagesAndChoices]:
    """Turn message structs back into the items of histories.

    Args:
        structs: The messages of all histories, one after the other. Absent columns count as null.
        lengths: How many messages each history has.
        long_texts: What the message parts of each history refer to.
    """
    columns = {name: _values(structs, name) for name in _COLUMNS}
    choices = _ManyChoices(columns, _prompts(columns, lengths))
    texts = chain.from_iterable(map(repeat, long_texts, lengths))
    items: list[Any] = []
    for role, content, parts, call_id, calls, extra, is_choice, reason, texts_of_row in zip(
        *(columns[name] for name in _MESSAGE_COLUMNS), texts, strict=True
    ):
        if is_choice and parts is None and call_id is None:
            choice = choices.copy(role, content, calls, reason, extra)
            if choice is not None:
                items.append(choice)
                continue
        if (
            extra is parts is calls is None
            and not is_choice
            and not (role is None or content is None)
        ):
            # Most messages, without a call into what is there for all.
            message = {"role": role, "content": content}
            if call_id is not None:
                message["tool_call_id"] = call_id
            items.append(message)
            continue
        message = _captured_message(role, content, parts, call_id, calls, texts_of_row)
        rest = parse_exact(extra) if extra is not None else {}
        if is_choice:
            choices.add(len(items), message, rest)
        elif rest:
            message = _overridden(message, rest)
        items.append(message)
    for i, choice in choices.build():
        items[i] = choice
    return _cut(items, lengths)


def _captured_message(
    role: str | None,
    content: str | None,
    parts: str | None,
    call_id: str | None,
    calls: str | None,
    long_texts: list[str] | None,
) -> dict[str, Any]:
    """Return what the columns captured of a message."""
    message: dict[str, Any] = {}
    if role is not None:
        message["role"] = role
    if parts is not None:
        value = parse_json(parts)
        message["content"] = value if long_texts is None else put_back(value, long_texts)
    elif content is not None:
        message["content"] = content
    if call_id is not None:
        message["tool_call_id"] = call_id
    if calls is not None:
        message["tool_calls"] = parse_json(calls)
    return message


# All but those that only repeat others, for queries.
_COLUMNS = [field.name for field in MESSAGE if field.name != "calls"]
_MESSAGE_COLUMNS = (
    "role",
    "content",
    "content_parts",
    "tool_call_id",
    "tool_calls",
    "extra",
    "trainable",
    "finish_reason",
)


def _values(structs: pa.StructArray, name: str) -> list[Any]:
    """Return one column as Python values."""
    index = structs.type.get_field_index(name)
    column = structs.field(index) if index >= 0 else None
    if column is None or column.null_count == len(column):
        return [None] * len(structs)
    values: list[Any] = column.to_pylist()
    return values


def _is_empty(column: list[Any]) -> bool:
    return column.count(None) == len(column)


def _cut(items: list[Any], lengths: Sequence[int]) -> list[list[Any]]:
    histories, start = [], 0
    for length in lengths:
        histories.append(items[start : start + length])
        start += length
    return histories


def _overridden(captured: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    if captured.keys().isdisjoint(extra):
        return {**captured, **extra}
    # Keys of `extra` keep their own order, so that encoding the result gives the same text again.
    return {**{key: captured[key] for key in captured if key not in extra}, **extra}


# --- what only a Choice has ---


def _prompts(columns: dict[str, list[Any]], lengths: Sequence[int]) -> list[list[int] | None]:
    """Put the prompt of each turn together from the turns before it and its own suffix."""
    if _is_empty(columns["prompt_suffix"]):
        return columns["prompt_suffix"]
    prompts: list[list[int] | None] = []
    columns_of_prompts = zip(
        columns["prompt_shared_length"], columns["prompt_suffix"], columns["token_ids"], strict=True
    )
    for length in lengths:
        context: list[int] = []
        for _ in range(length):
            shared_length, suffix, ids = next(columns_of_prompts)
            prompt = None if suffix is None else context[:shared_length] + suffix
            prompts.append(prompt)
            if prompt is not None:
                context = prompt + (ids or [])
    return prompts


def _logprobs(columns: dict[str, list[Any]]) -> list[dict[str, Any] | None]:
    if _is_empty(columns["tokens"]):
        return columns["tokens"]
    all_columns = (columns[name] for name in ("logprobs", "tokens", "token_bytes", "token_ids"))
    return [
        None if tokens is None else logprobs_from_columns(logprobs, tokens, token_bytes, token_ids)
        for logprobs, tokens, token_bytes, token_ids in zip(*all_columns, strict=True)
    ]


class _ManyChoices:
    """Builds Choices as `choice_from_dict` does; the ordinary ones all at once, which is ten times faster."""

    def __init__(self, columns: dict[str, list[Any]], prompts: list[list[int] | None]) -> None:
        captured = {
            "finish_reason": columns["finish_reason"],
            "token_ids": columns["token_ids"],
            "prompt_token_ids": prompts,
            "logprobs": _logprobs(columns),
        }
        # Columns that are empty throughout need not be looked into for each Choice.
        self._captured = [(name, col) for name, col in captured.items() if not _is_empty(col)]
        self._has_tokens = any(name != "finish_reason" for name, _ in self._captured)
        self._alike = ChoicesAlike(_validator().validate_python)
        self._ordinary: dict[int, dict[str, Any]] = {}
        self._others: dict[int, dict[str, Any]] = {}

    def copy(
        self,
        role: str | None,
        content: str | None,
        calls: str | None,
        finish_reason: str | None,
        extra: str | None,
    ) -> Choice | None:
        """Return a Choice without tokens as a copy of one like it; None if it must be added."""
        return (
            None
            if self._has_tokens
            else self._alike.build(role, content, calls, finish_reason, extra)
        )

    def add(self, i: int, message: dict[str, Any], rest: dict[str, Any]) -> None:
        """Add the Choice in place `i`.

        Args:
            i: Its place among all messages.
            message: What the columns captured of its message.
            rest: What they did not capture of the Choice.
        """
        fields = {name: column[i] for name, column in self._captured if column[i] is not None}
        reply = rest.pop("message", {})
        if isinstance(reply, dict):
            fields["message"] = _overridden(message, reply) if reply else message
            is_ordinary = is_kept_by_validation(rest, reply)
        else:
            fields["message"] = reply
            is_ordinary = False
        (self._ordinary if is_ordinary else self._others)[i] = _overridden(fields, rest)

    def build(self) -> list[tuple[int, Choice]]:
        """Return all Choices with their numbers."""
        try:
            built = _validator().validate_python(list(self._ordinary.values()))
        except pydantic.ValidationError:  # say, a finish reason that OpenAI does not know
            built = [choice_from_dict(fields) for fields in self._ordinary.values()]
        others = map(choice_from_dict, self._others.values())
        return [*zip(self._ordinary, built, strict=True), *zip(self._others, others, strict=True)]


@functools.cache
def _validator() -> pydantic.TypeAdapter[list[Choice]]:
    from openai.types.chat.chat_completion import Choice

    return pydantic.TypeAdapter(list[Choice])
