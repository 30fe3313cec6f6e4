from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat.chat_completion_message_function_tool_call import (
    ChatCompletionMessageFunctionToolCall,
    Function,
)

from art.books.call_columns import CallColumns, ordinary_calls
from art.books.plain_json import json_text, plain


def call(name: Any, arguments: Any = "{}", call_id: Any = "c1") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_calls_stand_with_their_messages() -> None:
    """Messages have as many calls as were put; those without any are null."""
    columns = CallColumns()
    columns.put(1, [call("f"), call("g")])
    columns.put(3, [call("h")])

    found = columns.array(5).to_pylist()

    names = [None if calls is None else [entry["name"] for entry in calls] for calls in found]
    assert names == [None, ["f", "g"], None, ["h"], None]


def test_the_calls_of_a_message_can_be_put_anew() -> None:
    """The last ones count."""
    columns = CallColumns()
    columns.put(0, [call("f")])
    columns.put(0, [call("g"), call("h")])

    assert [entry["name"] for entry in columns.array(1).to_pylist()[0]] == ["g", "h"]


@pytest.mark.parametrize(
    ("odd", "shown"),
    [
        (5, (None, None, None)),
        ("text", (None, None, None)),
        ({"id": "x"}, ("x", None, None)),
        ({"id": "x", "function": "f"}, ("x", None, None)),
        ({"function": {"name": "f"}}, (None, "f", None)),
        ({"id": "x", "custom": {"name": "f", "input": "i"}}, ("x", "f", "i")),
        (call("\ud800", "é", 7), ("7", "\ufffd", "é")),
        (call(None, {"a": 1}), ("c1", None, '{"a":1}')),
    ],
)
def test_odd_calls_show_what_they_have(odd: Any, shown: tuple[str | None, ...]) -> None:
    """What is no text is shown as JSON, a lone surrogate as U+FFFD; the calls beside it are not changed."""
    columns = CallColumns()
    columns.put(0, [call("f"), odd])

    [[first, second]] = columns.array(1).to_pylist()

    assert first == {"id": "c1", "name": "f", "arguments": "{}"}
    assert tuple(second.values()) == shown


def client_call(**fields: Any) -> Any:
    function = Function(name="f", arguments="{}")
    given: Any = {"id": "1", "type": "function", "function": function, **fields}
    return ChatCompletionMessageFunctionToolCall.construct(**given)


@given(st.lists(st.tuples(st.text(), st.text(), st.text()), min_size=1, max_size=3))
def test_ordinary_calls_are_stored_as_others_are(all_texts: list[tuple[str, str, str]]) -> None:
    """The quick way gives the JSON and the texts of the general one, whatever characters they hold."""
    calls = [
        client_call(id=call_id, function=Function(name=name, arguments=arguments))
        for call_id, name, arguments in all_texts
    ]

    assert ordinary_calls(calls) == (json_text(plain(calls, models=True)), all_texts)


def without_id() -> Any:
    call = client_call()
    del call.id
    return call


def with_name_first() -> Any:
    call = client_call()
    del call.function.arguments
    call.function.arguments = "{}"
    return call


def without_name() -> Any:
    call = client_call()
    del call.function.name
    return call


@pytest.mark.parametrize(
    "odd",
    [
        None,
        client_call(id=None),
        client_call(index=0),
        client_call(function=None),
        client_call(function={"name": "f", "arguments": "{}", "note": 1}),
        client_call(function={"name": "f", "arguments": {}}),
        client_call(id="\ud800"),
        with_name_first(),
        without_id(),
        without_name(),
    ],
)
def test_unusual_calls_are_left_to_the_general_way(odd: Any) -> None:
    """A call with other fields or values than texts is not taken for an ordinary one."""
    assert ordinary_calls([client_call()]) is not None
    assert ordinary_calls([client_call(), odd]) is None
