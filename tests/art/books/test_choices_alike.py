from __future__ import annotations

import pickle
from itertools import count
from typing import Any

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat.chat_completion import Choice

from art.books.choices_alike import _MAX_SHAPES, ChoicesAlike
from art.books.plain_json import exact_text, json_text

VALIDATOR = pydantic.TypeAdapter(list[Choice])

CALL: dict[str, Any] = {
    "id": "1",
    "type": "function",
    "function": {"name": "f", "arguments": "{}"},
}

texts = st.text(max_size=5)
scalars = st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False) | texts
notes = {"note": scalars | st.lists(scalars, max_size=2) | st.just({"a": [1, 2**70]})}
function_calls = st.fixed_dictionaries(
    {
        "id": texts,
        "type": st.just("function"),
        "function": st.fixed_dictionaries({"name": texts, "arguments": texts}, optional=notes),
    },
    optional=notes,
)
extras = st.dictionaries(st.sampled_from(["note", "stop_reason", "id"]), scalars)
all_columns = st.fixed_dictionaries(
    {
        "role": st.just("assistant"),
        "content": st.none() | texts,
        "calls": st.none() | st.lists(function_calls, max_size=3),
        "finish_reason": st.sampled_from(["stop", "tool_calls"]),
        "rest": st.fixed_dictionaries(
            {"index": st.integers(-1, 3)}, optional={"logprobs": st.none(), "message": extras}
        ),
    }
)


def build(alike: ChoicesAlike, columns: dict[str, Any]) -> Choice | None:
    calls, rest = columns["calls"], columns["rest"]
    return alike.build(
        columns["role"],
        columns["content"],
        None if calls is None else json_text(calls),
        columns["finish_reason"],
        exact_text(rest),
    )


def validated(columns: dict[str, Any]) -> Choice:
    calls, content = columns["calls"], columns["content"]
    rest = dict(columns["rest"])
    message = {
        "role": columns["role"],
        **({} if content is None else {"content": content}),
        **({} if calls is None else {"tool_calls": calls}),
        **rest.pop("message", {}),
    }
    fields = {"finish_reason": columns["finish_reason"], "message": message, **rest}
    return VALIDATOR.validate_python([fields])[0]


def internals(value: Any) -> Any:
    """Return all that pydantic keeps of a model, with the types of the values."""
    if isinstance(value, pydantic.BaseModel):
        fields = {key: internals(item) for key, item in vars(value).items()}
        extras = internals(value.__pydantic_extra__)
        was_set, private = sorted(value.model_fields_set), value.__pydantic_private__
        return type(value), list(fields.items()), was_set, extras, private
    if isinstance(value, dict):
        return [(key, internals(item)) for key, item in value.items()]
    if isinstance(value, list):
        return [internals(item) for item in value]
    return type(value), value


def some_columns(**given: Any) -> dict[str, Any]:
    columns = {"role": "assistant", "content": "a", "calls": None, "finish_reason": "stop"}
    return {**columns, "rest": {"index": 0}, **given}


@given(st.lists(all_columns, max_size=5))
def test_a_copy_cannot_be_told_from_a_validated_choice(
    many_columns: list[dict[str, Any]],
) -> None:
    """Values, types, order, set fields, extras, dump and pickle are those that pydantic's validation gives."""
    alike = ChoicesAlike(VALIDATOR.validate_python)
    for columns in many_columns:
        found, expected = build(alike, columns), validated(columns)

        assert found is not None
        assert internals(found) == internals(expected)
        assert found == expected
        assert found.model_dump_json() == expected.model_dump_json()
        assert internals(pickle.loads(pickle.dumps(found))) == internals(expected)


def test_choices_of_one_shape_share_nothing_that_can_be_changed() -> None:
    """Changing one Choice, its message, a tool call or the extras leaves the next one as it was written."""
    columns = some_columns(calls=[CALL, CALL], rest={"index": 0, "note": 1, "message": {"x": 1}})
    alike = ChoicesAlike(VALIDATOR.validate_python)

    changed = build(alike, columns)
    assert changed is not None
    assert changed.message.tool_calls is not None
    changed.index = 7
    changed.note = 2  # type: ignore[attr-defined] # an extra
    changed.message.refusal = "no"
    changed.message.tool_calls[0].id = "2"
    changed.message.tool_calls[0].function.name = "g"  # type: ignore[union-attr]
    changed.message.tool_calls.clear()

    assert internals(build(alike, columns)) == internals(validated(columns))


@pytest.mark.parametrize(
    "given_columns",
    [
        {"finish_reason": "abort"},
        {"role": "user"},
        {"rest": {}},
        {"rest": {"index": "1"}},
        {"rest": {"index": True}},
        {"rest": {"index": 0, "note": []}},
        {"rest": {"index": 0, "logprobs": {"content": []}}},
        {"rest": {"index": 0, "message": None}},
        {"rest": {"index": 0, "message": {"content": "b"}}},
        {"rest": {"index": 0, "message": {"tool_calls": None}}},
        {"rest": {"index": 0, "message": {"function_call": "f"}}},
        {"calls": {}, "finish_reason": "tool_calls"},
        {"calls": [1]},
        {"calls": [{"id": "1", "type": "custom", "custom": {"name": "f", "input": ""}}]},
        {"calls": [{"id": None, "type": "function", "function": {"name": "f", "arguments": ""}}]},
        {"calls": [{"id": "1", "type": "other", "function": {"name": "f", "arguments": ""}}]},
        {"calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": {}}}]},
        {"calls": [{"id": "1", "type": "function", "function": {"name": "f"}}]},
    ],
)
def test_what_validation_might_convert_is_no_copy(given_columns: dict[str, Any]) -> None:
    """Odd values, and lists and dicts that copies would share, are left to the general way."""
    assert build(ChoicesAlike(VALIDATOR.validate_python), some_columns(**given_columns)) is None


def test_patterns_are_bounded() -> None:
    """Where each Choice has a shape of its own, no pattern is made for it in the end."""
    calls = count()

    def validate(fields: list[dict[str, Any]]) -> list[Choice]:
        next(calls)
        return VALIDATOR.validate_python(fields)

    alike = ChoicesAlike(validate)
    for i in range(3 * _MAX_SHAPES):
        build(alike, some_columns(rest={"index": i}))

    assert next(calls) == _MAX_SHAPES
    assert build(alike, some_columns(rest={"index": 0})) is not None
