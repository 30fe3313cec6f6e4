from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat.chat_completion import Choice
from openai.types.chat.chat_completion_message import ChatCompletionMessage

from art.books.choice_shapes import ChoiceShapes, shape_of
from art.books.long_texts import LongTexts
from art.books.message_encoder import MessageColumns

MESSAGE: dict[str, Any] = {"role": "assistant", "content": "a", "refusal": None}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def choice(message: dict[str, Any] | None = None, **fields: Any) -> Choice:
    """Return a Choice that holds these values whatever pydantic thinks of them."""
    reply = ChatCompletionMessage.construct(**{**MESSAGE, **(message or {})})
    return Choice.construct(**{"finish_reason": "stop", "index": 0, "message": reply, **fields})


def encoded(choices: list[Choice]) -> list[dict[str, Any]]:
    columns = MessageColumns()
    columns.add(choices, LongTexts())  # type: ignore[arg-type] # lists are invariant
    structs: list[dict[str, Any]] = columns.array().to_pylist()
    return structs


texts = st.sampled_from(["", "a", "é", "\ud800"])
odd = st.sampled_from([True, 1, 1.0, [], ["a"], {}])
messages = st.fixed_dictionaries(
    {},
    optional={
        "role": st.just("user") | st.none() | texts,
        "content": st.none() | texts | odd,
        "refusal": st.none() | texts | odd,
        "annotations": st.none() | odd,
        "tool_calls": st.none()
        | st.just([CALL])
        | st.builds(lambda text: [{**CALL, "id": text}], texts)
        | odd,
        "note": texts,
    },
)
choices = st.builds(
    choice,
    messages,
    index=st.sampled_from([0, 1, True, 1.0, None]),
    finish_reason=st.sampled_from(["stop", "length", None, 1, True]) | texts,
)


@pytest.mark.parametrize(
    ("odd_one", "ordinary_one"),
    [
        (choice({"content": ["a"]}), choice({"content": "b"})),
        (choice({"content": "\ud800"}), choice({"content": "b"})),
        (choice({"tool_calls": [{**CALL, "id": "\ud800"}]}), choice({"tool_calls": [CALL]})),
        (choice({"tool_calls": []}), choice({"tool_calls": [CALL]})),
    ],
)
def test_the_odd_texts_of_a_choice_are_its_own(odd_one: Choice, ordinary_one: Choice) -> None:
    """What the columns of texts do not hold of one Choice is not given to the next one of its shape."""
    assert shape_of(odd_one) == shape_of(ordinary_one)
    for pair in ([odd_one, ordinary_one], [ordinary_one, odd_one]):
        assert encoded(pair) == [*encoded(pair[:1]), *encoded(pair[1:])]


@given(st.lists(choices, max_size=6))
def test_choices_are_stored_as_if_each_were_the_only_one(many: list[Choice]) -> None:
    """What was learned from the Choices before changes nothing of what a Choice is stored as."""
    alone = [encoded([item])[0] for item in many]

    assert repr(encoded([*many, *many])) == repr([*alone, *alone])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (choice(), choice({"content": None})),
        (choice(), choice({"refusal": "no"})),
        (choice(), choice(index=1)),
        (choice(), choice(finish_reason="length")),
        (choice(), choice(logprobs=None)),
        (choice(), choice({"tool_calls": None})),
        (choice({"tool_calls": None}), choice({"tool_calls": []})),
    ],
)
def test_what_is_stored_differently_has_another_shape(one: Choice, other: Choice) -> None:
    """Values, nulls and which fields were set all count."""
    assert shape_of(one) is not None
    assert shape_of(one) != shape_of(other)


def test_texts_are_no_part_of_the_shape() -> None:
    """Choices with other content and other tool calls have one shape."""
    assert shape_of(choice({"tool_calls": [CALL]})) == shape_of(
        choice({"content": "b", "tool_calls": [CALL, CALL]})
    )


@pytest.mark.parametrize(
    "item", [choice(note=1), choice({"note": 1}), choice(index=True), choice(message={"role": 1})]
)
def test_the_columns_of_an_unusual_choice_are_not_learned(item: Choice) -> None:
    """Extras belong to one Choice alone, and of equal values one may be True and one 1."""
    shapes = ChoiceShapes()
    shape = shape_of(item)
    if shape is not None:
        shapes.learn(shape, {}, {})

    assert shape is None or shapes.columns(shape) is None
