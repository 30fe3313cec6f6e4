"""What many Choices have in common, looked into once; `choices_alike` does the same on the way back.

Nearly all Choices of a step are the same but for their texts: role, finish reason and index, what is null, and
which fields were set. That is the shape of a Choice, and all Choices of a shape are stored alike.
"""

from __future__ import annotations

import functools
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from art.books.plain_json import exact_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from openai.types.chat.chat_completion import Choice

Shape: TypeAlias = tuple[Any, ...]

_TEXTS = ("content", "tool_calls")  # these differ; the shape tells whether they are null
COMMON_COLUMNS = ("role", "finish_reason")
_TEXT_OR_NULL = frozenset({str, type(None)})


class ChoiceShapes:
    """The columns that all Choices of a shape have in common, by shape."""

    def __init__(self) -> None:
        self._columns: dict[Shape, Mapping[str, str]] = {}

    def columns(self, shape: Shape) -> Mapping[str, str] | None:
        """Return the columns of a shape, None if they are not known."""
        try:
            return self._columns.get(shape)
        except TypeError:  # it holds a list or a model, and none like it can be known
            return None

    def learn(self, shape: Shape, captured: Mapping[str, str], rest: dict[str, Any]) -> None:
        """Keep the columns of a shape, if all Choices of it have these.

        Args:
            shape: The shape of a Choice.
            captured: The `COMMON_COLUMNS` of the Choice, as far as they hold something.
            rest: Its fields that no column captures, as plain JSON.
        """
        (_, *values), message_values, *_ = shape
        if not {*map(type, values), *map(type, message_values)} <= _TEXT_OR_NULL:
            return  # True, for example, is equal to 1
        if any(rest.get("message", {}).get(name) is not None for name in _TEXTS):
            return  # not captured, and not the same for all
        self._columns[shape] = {**captured, "extra": exact_text(rest)} if rest else captured


def shape_of(choice: Choice) -> Shape | None:
    """Return the shape of a Choice; None if it is unusual, as one with a provider's extras is."""
    models = _models()
    fields = choice.__dict__
    message: Any = fields.get("message")
    if type(choice) is not models.choice or type(message) is not models.message:
        return None
    texts = message.__dict__
    if len(fields) != models.num_fields or len(texts) != models.num_texts:
        return None
    if choice.__pydantic_extra__ or message.__pydantic_extra__ or type(fields["index"]) is not int:
        return None
    return (
        models.values(fields),
        models.message_values(texts),
        texts["content"] is None,
        texts["tool_calls"] is None,
        *choice.__pydantic_fields_set__,
        *message.__pydantic_fields_set__,
    )


class _Models(NamedTuple):
    choice: type[Any]
    message: type[Any]
    num_fields: int
    num_texts: int
    values: Callable[[Mapping[str, Any]], tuple[Any, ...]]
    message_values: Callable[[Mapping[str, Any]], tuple[Any, ...]]


@functools.cache
def _models() -> _Models:
    from openai.types.chat.chat_completion import Choice
    from openai.types.chat.chat_completion_message import ChatCompletionMessage

    fields, texts = Choice.model_fields, ChatCompletionMessage.model_fields
    return _Models(
        Choice,
        ChatCompletionMessage,
        len(fields),
        len(texts),
        itemgetter("index", *(fields.keys() - {"index", "message"})),
        itemgetter(*(texts.keys() - _TEXTS)),
    )
