from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from openai.types.chat.chat_completion import Choice
from openai.types.chat.chat_completion_message import ChatCompletionMessage
from openai.types.chat.chat_completion_message_function_tool_call import (
    ChatCompletionMessageFunctionToolCall,
    Function,
)

from art.books.long_texts import LongTexts
from art.books.message_decoder import decode_histories
from art.books.message_encoder import MessageColumns
from art.books.plain_json import NotPlainError
from art.books.trajectory_schema import MESSAGE
from art.equality import same_items
from art.messages import choice_from_dict, is_choice
from art.types import MessagesAndChoices
from tests.strategies import items


def encode_messages(items: MessagesAndChoices) -> list[dict[str, Any]]:
    columns = MessageColumns()
    columns.add(items, LongTexts())
    structs: list[dict[str, Any]] = columns.array().to_pylist()
    return structs


def decode_messages(structs: list[dict[str, Any]]) -> MessagesAndChoices:
    [history] = decode_histories(pa.array(structs, MESSAGE), [len(structs)], [None])
    return history


def choice(message: dict[str, Any] | None = None, **fields: Any) -> Choice:
    reply = {"role": "assistant", "content": "hi", **(message or {})}
    return choice_from_dict({"finish_reason": "stop", "index": 0, "message": reply, **fields})


def tool_call(arguments: str) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}


def logprobs(*tokens: str, **fields: Any) -> dict[str, Any]:
    entries = [
        {"token": t, "logprob": -0.5 - i, "bytes": list(t.encode()), "top_logprobs": []}
        for i, t in enumerate(tokens)
    ]
    return {"content": [{**entry, **fields} for entry in entries]}


def assert_survives(*given_items: Any) -> list[dict[str, Any]]:
    before: MessagesAndChoices = list(given_items)
    structs = encode_messages(before)
    assert same_items(decode_messages(structs), before)
    assert encode_messages(decode_messages(structs)) == structs
    return structs


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(items)
def test_any_history_survives_and_encodes_the_same_again(history: MessagesAndChoices) -> None:
    """Decoding gives back the items, and encoding them again the same structs."""
    structs = encode_messages(history)
    decoded = decode_messages(structs)

    assert same_items(decoded, history)
    assert repr(encode_messages(decoded)) == repr(structs)  # repr, as NaN differs from itself


def test_an_ordinary_message_needs_no_extra() -> None:
    """Role, content, tool calls and the id of the answered call have columns that hold them exactly."""
    message = {
        "role": "assistant",
        "content": "é",
        "tool_calls": [tool_call("{}")],
        "tool_call_id": "x",
    }

    [struct] = assert_survives(message)

    assert struct["extra"] is None
    assert struct["calls"] == [{"id": "c1", "name": "f", "arguments": "{}"}]


@pytest.mark.parametrize("key", ["content", "tool_calls", "tool_call_id", "name", "provider_note"])
def test_null_missing_and_empty_are_told_apart(key: str) -> None:
    """A key that is null, missing, an empty list or an empty text comes back as exactly that."""
    variants: list[dict[str, Any]] = [{}, {key: None}, {key: []}, {key: ""}, {key: {}}]
    for fields in variants:
        message = {"role": "user", **fields}
        assert decode_messages(encode_messages([message])) == [message]  # type: ignore[list-item] # odd on purpose


def test_calls_that_are_looked_at_twice_are_shown_once() -> None:
    """Calls with a lone surrogate, beside a field that must be made plain, stand in the column as they are."""
    function = Function(name="f", arguments="\ud800")
    calls = [ChatCompletionMessageFunctionToolCall(id="1", function=function, type="function")]

    first, second = assert_survives(
        {"role": "assistant", "tool_calls": calls, "score": 1.5},
        {"role": "assistant", "tool_calls": [tool_call("{}")]},
    )

    assert first["calls"] == [{"id": "1", "name": "f", "arguments": "\ufffd"}]
    assert second["calls"] == [{"id": "c1", "name": "f", "arguments": "{}"}]


def test_an_empty_list_of_tool_calls_shows_as_null() -> None:
    """Upstream's column is null where there are no calls; `extra` tells that the list was there."""
    [struct] = assert_survives({"role": "assistant", "tool_calls": []})

    assert struct.get("tool_calls") is None
    assert struct.get("calls") is None


def test_what_extra_overrides_does_not_change_its_order() -> None:
    """A key that is both shown in a column and kept in `extra` stays where it was among the others."""
    assert_survives({"trainable": None, "content": "\ud83d", "role": "system"})


def test_a_choice_comes_back_with_ids_logprobs_and_unknown_fields() -> None:
    """What training needs, and what the provider added, is there after a reload."""
    item = choice(
        {"reasoning_content": "hm", "refusal": None},
        token_ids=[1, 2],
        prompt_token_ids=[7, 8],
        logprobs=logprobs("a", "b"),
        checkpoint_step=3,
        temperature=1.0,
    )

    [struct] = assert_survives(item)
    [decoded] = decode_messages([struct])

    assert is_choice(decoded)
    assert decoded.logprobs is not None
    assert decoded.logprobs.content is not None
    assert [entry.logprob for entry in decoded.logprobs.content] == [-0.5, -1.5]
    assert decoded.model_extra is not None
    assert decoded.model_extra["token_ids"] == [1, 2]
    assert decoded.model_extra["checkpoint_step"] == 3
    assert (struct["token_ids"], struct["logprobs"]) == ([1, 2], [-0.5, -1.5])
    assert "logprob" not in struct["extra"]


@pytest.mark.parametrize("finish_reason", [None, "abort", "stop"])
def test_any_finish_reason_is_kept(finish_reason: str | None) -> None:
    """Engines send null and reasons that OpenAI does not know."""
    [struct] = assert_survives(choice(finish_reason=finish_reason))

    assert struct.get("finish_reason") == finish_reason


def test_logprobs_without_token_ids_and_ids_without_logprobs_survive() -> None:
    """Each of the two may be missing."""
    assert_survives(choice(logprobs=logprobs("a")), choice(token_ids=[5]), choice(token_ids=[]))


def test_empty_and_missing_logprobs_are_told_apart() -> None:
    """No tokens were generated, or no logprobs were asked for: not the same."""
    structs = assert_survives(
        choice(logprobs={"content": []}), choice(logprobs={"content": None}), choice(logprobs=None)
    )

    assert [struct.get("tokens") for struct in structs] == [[], None, None]


@pytest.mark.parametrize(
    "odd",
    [
        {"top_logprobs": [{"token": "x", "logprob": -2.0, "bytes": None}]},
        {"token": "\ud800"},
        {"provider_note": 1},
    ],
)
def test_irregular_logprobs_survive_and_are_still_there_to_query(odd: dict[str, Any]) -> None:
    """Alternatives, odd tokens and unknown fields go to `extra`; the numbers have their column all the same."""
    [struct] = assert_survives(choice(logprobs=logprobs("a", **odd)))

    assert struct["logprobs"] == [-0.5]
    assert struct.get("tokens") is None


@pytest.mark.parametrize("token_ids", [None, [], [4, 9], [9, 4]])
@pytest.mark.parametrize("tokens", [(), ("token_id:4", "token_id:9"), ("a", "b")])
@pytest.mark.parametrize("raw", [None, [], [97], "of the text"])
def test_tokens_that_are_the_token_ids_are_left_out(
    token_ids: list[int] | None, tokens: tuple[str, ...], raw: Any
) -> None:
    """Texts "token_id:N" and bytes that only spell the text take no room, and come back all the same."""
    given_logprobs = logprobs(*tokens)
    if raw != "of the text":
        for entry in given_logprobs["content"]:
            entry["bytes"] = raw

    [struct] = assert_survives(choice(token_ids=token_ids, logprobs=given_logprobs))

    spells_ids = tokens == ("token_id:4", "token_id:9") and token_ids == [4, 9]
    assert (struct["tokens"] == []) == (spells_ids or not tokens)


def test_the_bytes_of_a_partial_character_survive() -> None:
    """A token may be a part of a character; its text is U+FFFD, its bytes tell which part."""
    [struct] = assert_survives(choice(logprobs=logprobs("\ufffd", bytes=[240, 159])))

    assert struct["token_bytes"] == [b"\xf0\x9f"]


def test_prompts_share_what_the_turn_before_ended_with() -> None:
    """Only what is new in a prompt is stored; a prompt that starts otherwise is stored from there."""
    structs = assert_survives(
        choice(prompt_token_ids=[1, 2], token_ids=[3]),
        {"role": "user", "content": "more"},
        choice(prompt_token_ids=[1, 2, 3, 9], token_ids=[4]),
        choice(prompt_token_ids=[1, 7], token_ids=[5]),
        choice(prompt_token_ids=[1], token_ids=[]),
    )

    stored = [(s.get("prompt_shared_length"), s.get("prompt_suffix")) for s in structs]
    assert stored == [(0, [1, 2]), (None, None), (3, [9]), (1, [7]), (1, [])]


def test_ids_that_no_column_holds_survive() -> None:
    """Ids out of range, of other types, or numpy's are kept as well."""
    structs = assert_survives(
        choice(token_ids=[2**40]), choice(token_ids=[True]), choice(token_ids=[np.int64(4)])
    )

    assert [struct.get("token_ids") for struct in structs] == [None, None, [4]]


def test_a_multimodal_message_shows_its_text() -> None:
    """`content` stays text for every reader; the parts are beside it, unchanged."""
    parts = [
        {"type": "text", "text": "What is "},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
        {"type": "text", "text": "this?"},
    ]

    [struct] = assert_survives({"role": "user", "content": parts})

    assert struct["content"] == "What is this?"


def test_custom_and_malformed_tool_calls_are_kept_and_queryable() -> None:
    """A call of another shape has nulls where it has no id, name or arguments."""
    custom = {"id": "c2", "type": "custom", "custom": {"name": "grep", "input": "x"}}
    parsed = {"id": 7, "type": "function", "function": {"name": None, "arguments": {"a": 1}}}

    [struct] = assert_survives({"role": "assistant", "tool_calls": [custom, parsed, "odd"]})

    assert struct["calls"] == [
        {"id": "c2", "name": "grep", "arguments": "x"},
        {"id": "7", "name": None, "arguments": '{"a":1}'},
        {"id": None, "name": None, "arguments": None},
    ]


def test_a_providers_object_inside_a_message_is_stored_as_its_fields() -> None:
    """`message.tool_calls` of a reply is often put into a dict as it is."""
    call = ChatCompletionMessageFunctionToolCall(
        id="c1", type="function", function=Function(name="f", arguments="{}")
    )

    [struct] = assert_survives({"role": "assistant", "tool_calls": [call]})

    assert struct["calls"] == [{"id": "c1", "name": "f", "arguments": "{}"}]


def test_an_item_that_cannot_be_stored_is_named() -> None:
    """The error gives the index and the key."""
    message: Any = {"role": "user", "content": "a", "image": object()}

    with pytest.raises(NotPlainError, match=r"\[1\]\['image'\] is a object"):
        encode_messages([{"role": "user", "content": "a"}, message])
    with pytest.raises(NotPlainError, match=r"\[0\]: .*expected a message dict"):
        encode_messages(["text"])  # type: ignore[list-item] # wrong on purpose


def test_c001_content_parts_are_plain_data_each_time() -> None:
    """Encoding twice gives the same, and the user's own dict is neither changed nor consumed."""
    message: Any = {"role": "user", "content": [{"type": "text", "text": "a"}]}
    before = copy.deepcopy(message)

    first, second = encode_messages([message]), encode_messages([message])

    assert first == second
    assert first[0]["content_parts"] == '[{"type":"text","text":"a"}]'
    assert message == before


def test_c003_tool_call_arguments_cut_in_the_middle_are_kept_to_the_byte() -> None:
    """Arguments are text of the model, never parsed on the way."""
    cut = '{"query": "Gr\\u00fc'

    structs = assert_survives(
        {"role": "assistant", "tool_calls": [tool_call(cut)]},
        choice({"tool_calls": [tool_call(cut)]}),
    )

    assert [struct["calls"][0]["arguments"] for struct in structs] == [cut, cut]


def test_c005_a_message_without_content_stays_without() -> None:
    """A missing content is null in the column and missing again after a reload."""
    message = {"role": "assistant", "tool_calls": [tool_call("{}")]}

    [struct] = assert_survives(message)

    assert struct.get("content") is None
    assert decode_messages([struct]) == [message]


def test_c009_reasoning_and_unknown_fields_of_a_message_are_kept() -> None:
    """Fields that OpenAI's types do not know are not dropped."""
    message = {
        "role": "assistant",
        "content": "a",
        "reasoning_content": "hm",
        "provider_x": {"y": [1]},
    }

    assert decode_messages(encode_messages([message])) == [message]  # type: ignore[list-item] # unknown keys


def test_c011_a_subclass_with_other_fields_loses_nothing_and_warns_of_nothing() -> None:
    """Fields declared on a wrapper's subclass, and values of other types, are kept without a warning."""

    class WrapperMessage(ChatCompletionMessage):
        provider_specific_fields: dict[str, Any] | None = None

    class WrapperChoice(Choice):
        finish_reason: str = "stop"  # type: ignore[assignment] # wrappers widen it

    reply = WrapperMessage(role="assistant", content="a", provider_specific_fields={"x": 1})
    item = WrapperChoice(index=0, message=reply)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        [decoded] = decode_messages(encode_messages([item]))

    assert same_items([decoded], [item])
    assert is_choice(decoded)
    assert decoded.finish_reason == "stop"
    assert decoded.message.model_extra == {"provider_specific_fields": {"x": 1}}


def test_c014_a_lone_surrogate_is_replaced_in_the_column_and_kept_in_extra() -> None:
    """The column shows U+FFFD; the exact text is in `extra`."""
    structs = assert_survives(
        {"role": "user", "content": "a\udc80", "tool_calls": [tool_call("\ud800")]},
        choice({"content": "b\ud800"}),
    )

    assert [struct["content"] for struct in structs] == ["a\ufffd", "b\ufffd"]
    assert structs[0]["calls"][0]["arguments"] == "\ufffd"
    assert "\\ud800" in structs[1]["extra"]


def test_c017_nul_characters_survive() -> None:
    """NUL is text like any other."""
    structs = assert_survives(
        {"role": "tool", "content": "a\x00b", "tool_call_id": "c1"},
        choice({"tool_calls": [tool_call("\x00")]}),
    )

    assert structs[0]["content"] == "a\x00b"
