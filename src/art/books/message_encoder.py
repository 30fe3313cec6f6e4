"""Turns of conversations, message dicts and Choices, as the message structs of the trajectory file.

Typed columns are for queries; exactness comes from one rule. A column *captures* a value when decoding the
column gives back exactly that value. Whatever is not captured (unknown provider keys, nulls, odd types, text
with lone surrogates) stays in `extra`, and `extra` wins over the columns. So a null, a missing key, `[]` and
`""` are told apart, and nothing is lost for want of a column.

A step holds a hundred thousand messages, so columns are collected for many of them and handed to Arrow whole.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, TypeGuard

import pyarrow as pa
import pydantic

from art.books.call_columns import CallColumns, Texts, ordinary_calls
from art.books.choice_shapes import COMMON_COLUMNS, ChoiceShapes, Shape, shape_of
from art.books.long_texts import LongTexts, TakenKeyError
from art.books.plain_json import (
    PLAIN_AS_IT_IS,
    NotPlainError,
    exact_text,
    parse_exact,
    plain_fields,
    shown,
    stored_text,
    written_fields,
)
from art.books.token_columns import are_integers, fit_int32, logprob_columns, shared_length
from art.books.trajectory_schema import MESSAGE
from art.messages import normalise_item

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from openai.types.chat.chat_completion import Choice
    from openai.types.chat.chat_completion_message import ChatCompletionMessage

    from art.types import MessageOrChoice, MessagesAndChoices

_REPLY_TEXTS = frozenset({"role", "content", "tool_call_id"})
_TEXT = frozenset({str})
_TOKEN_FIELDS = frozenset({"token_ids", "prompt_token_ids"})
_INDICES = range(2**31)  # of Choices, for example; whole numbers that need no closer look
_CHARACTERS_PER_TOKEN = 16


class MessageColumns:
    """Messages in the making, column by column.

    Attributes:
        size: Estimate of the memory that they take, in characters of text.
    """

    def __init__(self) -> None:
        self.size = 0
        self._count = 0
        # Values by index of the message; what is absent is null.
        self._values: dict[str, dict[int, Any]] = {field.name: {} for field in MESSAGE}
        self._calls = CallColumns()
        self._shapes = ChoiceShapes()
        self._not_captured: dict[int, dict[str, Any]] = {}
        self._long_texts = LongTexts()  # of the row that is being added

    def __len__(self) -> int:
        return self._count

    def add(self, items: MessagesAndChoices, long_texts: LongTexts) -> None:
        """Add the items of one history.

        Args:
            items: The items.
            long_texts: Takes the images and other long texts of message parts.

        Raises:
            NotPlainError: An item holds something that has no JSON form; the message starts with `[index]`.
        """
        self._long_texts = long_texts
        context: list[int] = []  # the token ids of the turns so far, up to the last Choice
        for i, item in enumerate(items):
            if type(item) is dict and _holds_texts_alone(item):
                self._add_texts(item)
                continue
            try:
                context = self._add(normalise_item(item, "it"), context)
            except NotPlainError as error:
                raise NotPlainError(f"[{i}]{error}") from error
            except TypeError as error:
                raise NotPlainError(f"[{i}]: {error}") from error

    def array(self) -> pa.StructArray:
        """Return all messages as one array."""
        arrays = {field.name: self._array(field) for field in MESSAGE if field.name != "extra"}
        # Last, since the columns of text may have left something over.
        extra = self._values["extra"]
        extra |= {i: exact_text(rest) for i, rest in self._not_captured.items()}
        arrays["extra"] = self._array(MESSAGE.field("extra"))
        return pa.StructArray.from_arrays(list(arrays.values()), fields=list(MESSAGE))

    def _array(self, field: pa.Field) -> pa.Array:
        if field.name == "calls":
            return self._calls.array(self._count)
        values = self._values[field.name]
        if not values:
            return pa.nulls(self._count, field.type)
        try:
            return pa.array([*map(values.get, range(self._count))], field.type)
        except UnicodeEncodeError:
            # Lone surrogates, which only the four columns of plain text may hold.
            self._set_surrogates_apart(field.name)
            return pa.array([*map(values.get, range(self._count))], field.type)

    def _add_texts(self, message: dict[str, str]) -> None:
        """Add a message of nothing but texts, as most are."""
        i = self._count
        self._count += 1
        self._values["trainable"][i] = False
        for key, text in message.items():
            self._values[key][i] = text
            self.size += len(text)

    def _add(self, item: MessageOrChoice, context: list[int]) -> list[int]:
        """Add one item, and return the token ids of the conversation after it."""
        i = self._count
        self._count += 1
        self._values["trainable"][i] = not isinstance(item, dict)
        if isinstance(item, dict):
            rest = self._capture_message(item, item, i)
        elif (shape := shape_of(item)) is not None:
            rest = self._capture_by_shape(item, shape, i)
        else:
            rest, context = self._capture_choice(item, i, context)
        if rest:
            self._not_captured[i] = rest
        return context

    # --- what a message and the message of a Choice have in common ---

    def _capture_message(
        self, fields: Mapping[str, Any], written: Container[str], i: int
    ) -> dict[str, Any]:
        """Fill the columns of message `i`; return the fields that they do not capture.

        Args:
            fields: Its fields.
            written: Names of those that count even if they hold None.
            i: Its index.
        """
        rest: dict[str, Any] = {}
        is_plain = True
        values, size = self._values, 0
        for key, value in fields.items():
            kind = type(value)
            if kind is str and key in _REPLY_TEXTS:
                values[key][i] = value
                size += len(value)
            elif value is None and key not in written:
                continue
            elif key == "tool_calls" and (calls := ordinary_calls(value)) is not None:
                self._put_ordinary_calls(calls, i)
            else:
                rest[key] = value
                is_plain = is_plain and kind in PLAIN_AS_IT_IS and type(key) is str
        self.size += size
        return rest if is_plain else self._capture_odd_fields(rest, i)

    def _capture_odd_fields(self, fields: dict[str, Any], i: int) -> dict[str, Any]:
        rest = plain_fields(fields, models=True)
        for key in _REPLY_TEXTS:
            if isinstance(rest.get(key), str):  # of a subclass before, an enumeration's member
                self._values[key][i] = rest.pop(key)
        if "content" in rest:
            self._capture_content(rest, i)
        calls = rest.get("tool_calls")
        # Not if it is empty: upstream, too, writes null then.
        if calls and isinstance(calls, list) and self._put_calls(calls, i):
            del rest["tool_calls"]
        return rest

    def _capture_content(self, rest: dict[str, Any], i: int) -> None:
        content = rest["content"]
        if isinstance(content, list):
            self._values["content"][i] = shown("".join(map(_text_of_part, content)))
            with contextlib.suppress(TakenKeyError):
                parts = self._long_texts.set_apart(content)
                if self._put_json("content_parts", i, parts):
                    del rest["content"]

    def _put_calls(self, calls: list[Any], i: int) -> bool:
        """Put tool calls in their columns; return whether these show them exactly."""
        self._calls.put(i, calls)
        return self._put_json("tool_calls", i, calls)

    def _put_ordinary_calls(self, calls: tuple[str, list[Texts]], i: int) -> None:
        text, texts = calls
        self._values["tool_calls"][i] = text
        self._calls.put_texts(i, texts)
        self.size += len(text)

    def _put_json(self, column: str, i: int, value: object) -> bool:
        """Put JSON in a column; return whether it shows the value exactly."""
        self._values[column][i], is_exact = stored_text(value)
        self.size += len(self._values[column][i])
        return is_exact

    def _set_surrogates_apart(self, name: str) -> None:
        """Show U+FFFD for lone surrogates in a column of text, and keep the exact text in `extra`."""
        values = self._values[name]
        for i, text in values.items():
            if not text.isascii() and (replaced := shown(text)) != text:
                rest = self._not_captured.setdefault(i, {})
                if i in self._values["extra"]:
                    rest.update(parse_exact(self._values["extra"].pop(i)))
                if name != "finish_reason" and self._values["trainable"][i]:
                    rest = rest.setdefault("message", {})
                rest[name] = text
                values[i] = replaced

    # --- what only a Choice has ---

    def _capture_by_shape(self, choice: Choice, shape: Shape, i: int) -> dict[str, Any]:
        """Fill the columns of message `i` as of the other Choices of its shape; return the fields left over."""
        columns = self._shapes.columns(shape)
        if columns is not None and self._capture_ordinary_texts(choice.message, i):
            for name, text in columns.items():
                self._values[name][i] = text
            return {}
        rest, _ = self._capture_choice(choice, i, [])  # token ids would be extras
        captured = {
            name: self._values[name][i] for name in COMMON_COLUMNS if i in self._values[name]
        }
        self._shapes.learn(shape, captured, rest)
        return rest

    def _capture_ordinary_texts(self, message: ChatCompletionMessage, i: int) -> bool:
        """Put the content and tool calls of a reply in their columns, and tell whether these show them exactly."""
        content, calls = message.content, message.tool_calls
        if content is not None:
            if type(content) is not str:
                return False
            self._values["content"][i] = content
            self.size += len(content)
        if calls is None:
            return True
        if (ordinary := ordinary_calls(calls)) is None:
            return False
        self._put_ordinary_calls(ordinary, i)
        return True

    def _capture_choice(
        self, choice: Choice, i: int, context: list[int]
    ) -> tuple[dict[str, Any], list[int]]:
        """Fill the columns of message `i`; return the fields that they do not capture, and the token ids."""
        fields, written = _fields_and_written(choice)
        rest: dict[str, Any] = {}
        reply: Any = None
        is_plain = True
        for key, value in fields.items():
            kind = type(value)
            if key == "message":
                reply = value
            elif key == "finish_reason" and kind is str:
                self._values[key][i] = value
            elif value is not None or key in written:
                rest[key] = value
                is_known = kind in PLAIN_AS_IT_IS or (kind is int and value in _INDICES)
                is_plain = is_plain and is_known and type(key) is str
        if not is_plain:
            rest, context = self._capture_odd_fields_of_choice(rest, i, context)
        if isinstance(reply, pydantic.BaseModel):
            reply = self._capture_message(*_fields_and_written(reply), i)
        elif isinstance(reply, dict):
            reply = self._capture_message(reply, reply, i)
        else:
            return {**rest, **plain_fields({"message": reply}, models=True)}, context
        if reply:
            rest["message"] = reply
        return rest, context

    def _capture_odd_fields_of_choice(
        self, fields: dict[str, Any], i: int, context: list[int]
    ) -> tuple[dict[str, Any], list[int]]:
        if not _TOKEN_FIELDS.isdisjoint(fields):
            context = self._capture_token_ids(fields, i, context)
        if fields.get("logprobs") is not None:
            self._capture_logprobs(fields, i)
        rest = plain_fields(fields, models=True)
        if isinstance(rest.get("finish_reason"), str):  # an enumeration's member before
            self._values["finish_reason"][i] = rest.pop("finish_reason")
        return rest, context

    def _capture_token_ids(self, fields: dict[str, Any], i: int, context: list[int]) -> list[int]:
        """Move lists of token ids from `fields` to their columns; return those of the conversation so far."""
        ids = _integers(fields, "token_ids")
        if ids is not None and fit_int32(ids):
            self._values["token_ids"][i] = fields.pop("token_ids")
            self.size += _CHARACTERS_PER_TOKEN * len(ids)
        else:
            ids = []
        prompt = _integers(fields, "prompt_token_ids")
        if prompt is None:
            return context
        length = shared_length(prompt, context)
        suffix = prompt[length:]
        if not fit_int32(suffix):
            return context
        del fields["prompt_token_ids"]
        self._values["prompt_shared_length"][i] = length
        self._values["prompt_suffix"][i] = suffix
        self.size += _CHARACTERS_PER_TOKEN * len(suffix)
        return prompt + ids

    def _capture_logprobs(self, fields: dict[str, Any], i: int) -> None:
        columns, is_exact = logprob_columns(fields["logprobs"], self._values["token_ids"].get(i))
        for name, column in columns.items():
            self._values[name][i] = column
            self.size += _CHARACTERS_PER_TOKEN * len(column or ())
        if is_exact:
            del fields["logprobs"]


def _holds_texts_alone(message: Mapping[str, object]) -> TypeGuard[dict[str, str]]:
    return message.keys() <= _REPLY_TEXTS and {*map(type, message.values())} == _TEXT


def _fields_and_written(model: pydantic.BaseModel) -> tuple[dict[str, Any], Container[str]]:
    """Return fields of a model, and the names of those that count even if they hold None; see `written_fields`."""
    if model.__pydantic_extra__:
        fields = written_fields(model)
        return fields, fields
    return vars(model), model.__pydantic_fields_set__  # most of the time; not copied


def _text_of_part(part: object) -> str:
    text = part.get("text") if isinstance(part, dict) else part
    return text if isinstance(text, str) else ""


def _integers(fields: dict[str, Any], key: str) -> list[int] | None:
    """Return a field that is a list of integers, made plain; None if it is no such list."""
    if key not in fields:
        return None
    value = fields[key]
    if isinstance(value, list) and not are_integers(value):
        value = fields[key] = plain_fields({key: value})[key]  # numpy's integers, for example
    return value if are_integers(value) else None
