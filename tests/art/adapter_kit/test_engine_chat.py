from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from art.adapter_kit.engine_protocol import GenerateRequest
from tests.art.adapter_kit.gateways import REPLY, USER, ScriptedEngine, Served, held_rendering


async def test_a_choice_carries_what_training_needs_without_being_asked() -> None:
    """The plain client finds ids, logprobs, step and temperature on the choice, and the pinned name on the answer."""
    served = Served()
    completion = await served.client.chat.completions.create(model="m", messages=USER)
    choice: Any = completion.choices[0]
    assert completion.model == "m@7"
    assert choice.message.content == "Hello"
    assert choice.finish_reason == "stop"
    assert choice.prompt_token_ids == list(b"Hi")
    assert choice.token_ids == REPLY
    assert choice.checkpoint_step == 7
    assert choice.temperature == 1.0
    tokens = choice.logprobs.content
    assert [token.token for token in tokens] == ["H", "e", "l", "l", "o", "<end>"]
    assert [token.logprob for token in tokens] == [-0.5, -1.5, -2.5, -3.5, -4.5, -5.5]
    assert tokens[0].bytes == [72]
    assert tokens[0].top_logprobs == []
    assert completion.usage is not None
    assert completion.usage.model_dump(exclude_none=True) == {
        "prompt_tokens": 2,
        "completion_tokens": 6,
        "total_tokens": 8,
    }


async def test_parameters_reach_the_engine() -> None:
    """Every sampling parameter of the request is what the engine is asked."""
    served = Served()
    response = await served.chat(
        model="m@0003",
        n=2,
        temperature=0,
        top_p=0.5,
        max_tokens=9,
        max_completion_tokens=3,
        stop=["x", "", "y"],
        seed=11,
        logprobs=True,
        top_logprobs=2,
    )
    assert served.engine.requests == [
        GenerateRequest(tuple(b"Hi"), "slot0", 3, 2, 0.0, 0.5, ("x", "y"), 11, 2, stream=False)
    ]
    body = response.json()
    assert body["model"] == "m@3"
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    for choice in body["choices"]:
        assert choice["token_ids"] == REPLY[:3]
        assert choice["temperature"] == 0
        assert choice["finish_reason"] == "length"
        assert [top["logprob"] for top in choice["logprobs"]["content"][0]["top_logprobs"]] == [
            0,
            -1,
        ]


async def test_null_means_not_given() -> None:
    """Fields that are null, and neutral values of unsupported ones, are as if left out."""
    served = Served()
    nulls = dict.fromkeys(
        ["n", "temperature", "top_p", "max_tokens", "max_completion_tokens", "stop", "seed", "logprobs",
         "top_logprobs", "tools", "tool_choice", "stream", "stream_options", "logit_bias"]
    )  # fmt: skip
    response = await served.chat(**nulls, frequency_penalty=0, top_k=-1, user="someone")
    assert response.status_code == 200
    assert served.engine.requests == [GenerateRequest(tuple(b"Hi"), "slot1", 62)]


@pytest.mark.parametrize("wanted", [None, 1000])
async def test_a_completion_never_exceeds_the_context(wanted: int | None) -> None:
    """The most tokens by default, and whatever is asked, is what the prompt leaves of the context."""
    served = Served()
    await served.chat(max_tokens=wanted)
    assert served.engine.requests[0].max_tokens == ScriptedEngine.max_context - 2


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"model": None}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": [{"content": "Hi"}]}, "messages[0]"),
        ({"messages": [{"role": "judge", "content": "Hi"}]}, "messages"),
        (
            {"messages": [*USER, {"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[1]",
        ),
        ({"messages": [{"role": "assistant", "tool_calls": "none"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": "x" * 64}]}, "messages"),
        ({"n": 0}, "n"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": 1e-9}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 1.5}, "max_completion_tokens"),
        ({"stop": [1]}, "stop"),
        ({"seed": "x"}, "seed"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"tools": {}}, "tools"),
        ({"stream_options": 3}, "stream_options"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tool_choice": "required"}, "tool_choice"),
    ],
)
async def test_a_bad_field_is_named(body: dict[str, Any], param: str) -> None:
    """A request that cannot be served as asked is a 400 in OpenAI's shape that names the field."""
    served = Served()
    response = await served.chat(**body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert served.engine.requests == []


async def test_a_prompt_that_does_not_fit_is_told_by_code() -> None:
    """The code is the one that clients know, the message has both numbers."""
    response = await Served().chat(messages=[{"role": "user", "content": "x" * 70}])
    error = response.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "70" in error["message"]
    assert "64" in error["message"]


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (DEEP, 400),
        (json.dumps({"model": "\ud800", "messages": USER}), 404),
        (json.dumps({"model": "m", "messages": [{"role": "judge", "content": "\ud800"}]}), 400),
        (json.dumps({"model": "m", "messages": USER, "top_k": "\ud800"}), 400),
        (
            json.dumps(
                {
                    "model": "m",
                    "messages": [
                        *USER,
                        {
                            "role": "assistant",
                            "content": "a",
                            "tool_calls": [{"function": {"name": "f", "arguments": DEEP}}],
                        },
                    ],
                }
            ),
            200,
        ),
    ],
    ids=["deep", "surrogate name", "surrogate text", "surrogate option", "deep arguments"],
)
async def test_hostile_json_is_no_internal_error(body: str, status: int) -> None:
    """Nesting without end, and escapes that stand for no Unicode text, are answered like any other request."""
    served = Served()
    response = await served.http.post("/v1/chat/completions", content=body)
    assert response.status_code == status, response.text


async def test_a_long_rendering_does_not_hold_up_other_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While one prompt is rendered the server answers."""
    served = Served()
    rendering, go_on = held_rendering(served.engine, monkeypatch)
    request = asyncio.create_task(served.chat())
    try:
        await asyncio.to_thread(rendering.wait)
        assert (await served.http.get("/health")).status_code == 200
        # What is unloaded meanwhile answers nothing.
        response = await served.http.post("/v1/unload_lora_adapter", json={"lora_name": "m@7"})
        assert response.status_code == 200
    finally:
        go_on.set()
    assert (await request).status_code == 404
    assert served.engine.requests == []


async def test_messages_take_the_form_that_templates_expect() -> None:
    """Text parts are joined, null content is empty, and JSON arguments of tool calls become objects."""
    served = Served()
    call = {
        "id": "1",
        "type": "function",
        "function": {"name": "look", "arguments": '{"at": "sky"}'},
    }
    broken = {"id": "2", "type": "function", "function": {"name": "look", "arguments": "{at"}}
    tools = [{"type": "function", "function": {"name": "look"}}]
    response = await served.chat(
        messages=[
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            },
            {"role": "assistant", "content": None, "tool_calls": [call, broken], "reasoning": "r"},
            {"role": "tool", "content": "blue", "tool_call_id": "1", "tool_calls": None},
        ],
        tools=tools,
        chat_template_kwargs={"enable_thinking": False},
    )
    assert response.status_code == 200
    parsed = {**call, "function": {"name": "look", "arguments": {"at": "sky"}}}
    assert served.engine.rendered == [
        (
            [
                {"role": "user", "content": "a\nb"},
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [parsed, broken],
                    "reasoning": "r",
                },
                {"role": "tool", "content": "blue", "tool_call_id": "1"},
            ],
            tools,
            {"enable_thinking": False},
        )
    ]


CALL = 'Well: <tool_call>\n{"name": "look", "arguments": {"at": "sky"}}\n</tool_call>'


TOOLS = [{"type": "function", "function": {"name": "look"}}]


@pytest.mark.parametrize("stream", [False, True])
async def test_tool_calls_in_the_text_are_recognised_when_tools_are_given(stream: bool) -> None:
    """The message has the call and the rest of the text; token ids stay those of the whole text."""
    served = Served([*CALL.encode(), 256])
    served.engine.max_context = 1000
    if stream:
        chunks = [chunk["choices"][0] for chunk in await served.events(tools=TOOLS)]
        content = "".join(chunk["delta"].get("content", "") for chunk in chunks).strip()
        (calls,) = [
            chunk["delta"]["tool_calls"] for chunk in chunks if "tool_calls" in chunk["delta"]
        ]
        finish_reason = chunks[-1]["finish_reason"]
        token_ids = [token for chunk in chunks for token in chunk.get("token_ids", [])]
    else:
        (choice,) = (await served.chat(tools=TOOLS)).json()["choices"]
        content, calls = choice["message"]["content"], choice["message"]["tool_calls"]
        finish_reason, token_ids = choice["finish_reason"], choice["token_ids"]
    assert content == "Well:"
    assert [call["function"] for call in calls] == [{"name": "look", "arguments": '{"at": "sky"}'}]
    assert finish_reason == "tool_calls"
    assert bytes(token_ids[:-1]) == CALL.encode()


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (CALL, {}),
        (CALL, {"tools": TOOLS, "tool_choice": "none"}),
        (CALL.replace("}}", "}"), {"tools": TOOLS}),
        (CALL.removesuffix("</tool_call>"), {"tools": TOOLS}),
        ("a <tool", {"tools": TOOLS}),
        (r'<tool_call>{"name": "\ud83d"}</tool_call>', {"tools": TOOLS}),
        (f"<tool_call>{'[' * 2000}</tool_call>", {"tools": TOOLS}),
    ],
)
async def test_what_is_no_tool_call_stays_text(text: str, options: dict[str, Any]) -> None:
    """Without tools, or with a malformed or unfinished call, the content is the text as it is, streamed or not."""
    served = Served([*text.encode(), 256])
    served.engine.max_context = 10_000
    (choice,) = (await served.chat(**options)).json()["choices"]
    assert choice["message"]["content"] == text
    assert choice["finish_reason"] == "stop"
    chunks = [chunk["choices"][0] for chunk in await served.events(**options)]
    assert "".join(chunk["delta"].get("content", "") for chunk in chunks) == text


async def test_tokens_can_be_spelled_as_ids() -> None:
    """`return_tokens_as_token_ids` writes `token_id:N`, for wrappers that keep nothing but logprobs."""
    body = (await Served().chat(return_tokens_as_token_ids=True)).json()
    tokens = body["choices"][0]["logprobs"]["content"]
    assert [token["token"] for token in tokens] == [f"token_id:{token}" for token in REPLY]


async def test_a_stream_holds_what_the_whole_answer_holds() -> None:
    """Put together, the chunks of each choice give the text, ids, logprobs and provenance of the plain answer."""
    served = Served()
    whole = (await served.chat(n=2)).json()
    chunks = await served.events(n=2)
    assert {chunk["model"] for chunk in chunks} == {"m@7"}
    for choice in whole["choices"]:
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == choice["index"]]
        assert mine[0]["delta"]["role"] == "assistant"
        assert mine[0]["prompt_token_ids"] == choice["prompt_token_ids"]
        assert "".join(c["delta"].get("content", "") for c in mine) == choice["message"]["content"]
        assert [t for c in mine for t in c.get("token_ids", [])] == choice["token_ids"]
        logprobs = [t for c in mine if c["logprobs"] for t in c["logprobs"]["content"]]
        assert logprobs == choice["logprobs"]["content"]
        assert [c["finish_reason"] for c in mine[:-1]] == [None] * (len(mine) - 1)
        for key in ("finish_reason", "checkpoint_step", "temperature"):
            assert mine[-1][key] == choice[key]
