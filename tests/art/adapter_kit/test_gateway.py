from __future__ import annotations

import asyncio
import json
import threading
from typing import TYPE_CHECKING, Any, cast

import httpx
import openai
import pytest

from art.adapter_kit.engine_protocol import GenerateRequest, TokenEvent
from art.adapter_kit.gateway import Gateway
from art.adapter_kit.served_names import ServedNames
from art.errors import ConfigurationError, InferenceError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

KEY = "sk-test-key"
REPLY = [*b"Hello", 256]
USER: Any = [{"role": "user", "content": "Hi"}]


class ScriptedEngine:
    """Answers every prompt with a script of bytes; token 256 ends it. Keeps what it was asked."""

    max_context = 64
    failure: str | None = None

    def __init__(self, script: list[int] | None = None) -> None:
        self.script = script or REPLY
        self.requests: list[GenerateRequest] = []
        self.rendered: list[tuple[Any, Any, Any]] = []
        self.loaded: dict[str, str] = {}
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.cancelled = asyncio.Event()
        self.fails_with: str | None = None

    def render(self, messages: Any, tools: Any, template_options: Any) -> list[int]:
        self.rendered.append((messages, tools, template_options))
        if messages[0]["role"] == "judge":
            raise ValueError(f"no such role: judge, who says {messages[0]['content']}")
        return list("".join(message["content"] for message in messages).encode())

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else b"<end>"

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
        self.requests.append(request)
        tokens = self.script[: request.max_tokens]
        try:
            for i, token in enumerate(tokens):
                for index in range(request.n):
                    await self.go_on.wait()
                    if self.fails_with is not None:
                        raise InferenceError(self.fails_with)
                    last = i == len(tokens) - 1
                    reason: Any = None if not last else "stop" if token == 256 else "length"
                    text = chr(token) if token < 256 else ""
                    top = tuple((k, -float(k)) for k in range(request.top_logprobs))
                    yield TokenEvent(index, token, -0.5 - i, text, top, reason)
        finally:
            self.cancelled.set()

    async def load_adapter(self, adapter: str, path: str) -> None:
        if "bad" in path:
            raise ConfigurationError(f"{path} does not fit")
        self.loaded[adapter] = path

    async def unload_adapter(self, adapter: str) -> None:
        self.loaded.pop(adapter, None)
        if self.cancelled.is_set():
            return
        self.fails_with = "the adapter was unloaded"
        self.go_on.set()


class Served:
    """A gateway over a scripted engine, with checkpoints 3 and 7 (the latest) of `m`."""

    def __init__(self, script: list[int] | None = None, drain_s: float = 30.0) -> None:
        self.engine = ScriptedEngine(script)
        self.names = ServedNames("m", "base/model")
        for step in (3, 7):
            self.names.publish(f"m@{step}", self.names.new_adapter_id(), latest=step == 7)
        self.gateway = Gateway(self.engine, self.names, api_key=KEY, drain_s=drain_s)
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(self.gateway.app),
            base_url="http://gateway",
            headers={"Authorization": f"Bearer {KEY}"},
        )
        self.client = openai.AsyncOpenAI(
            api_key=KEY,
            base_url="http://gateway/v1",
            http_client=cast("Any", self.http),
            max_retries=0,
        )

    async def chat(self, **body: Any) -> httpx.Response:
        return await self.http.post(
            "/v1/chat/completions", json={"model": "m", "messages": USER, **body}
        )

    async def events(self, **body: Any) -> list[dict[str, Any]]:
        response = await self.chat(stream=True, **body)
        lines = [line for line in response.text.split("\n\n") if line]
        return [json.loads(line.removeprefix("data: ")) for line in lines if line != "data: [DONE]"]


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


async def test_the_base_model_answers_under_its_own_name() -> None:
    """Its choices have no checkpoint step."""
    served = Served()
    body = (await served.chat(model="base/model")).json()
    assert body["model"] == "base/model"
    assert body["choices"][0]["checkpoint_step"] is None
    assert served.engine.requests[0].adapter is None


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


@pytest.mark.parametrize("content", [b"{", b"[]", b'"m"', b"\xff"])
async def test_a_body_that_is_no_object_is_refused(content: bytes) -> None:
    """Anything but a JSON object is a 400."""
    served = Served()
    for path in ("chat/completions", "load_lora_adapter", "unload_lora_adapter"):
        assert (await served.http.post(f"/v1/{path}", content=content)).status_code == 400


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
    rendering, go_on = threading.Event(), threading.Event()
    render = served.engine.render

    def slow(*args: Any) -> list[int]:
        rendering.set()
        go_on.wait()
        return render(*args)

    monkeypatch.setattr(served.engine, "render", slow)
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


@pytest.mark.parametrize(
    "authorization", ["", "Bearer", "Bearer wrong", f"Basic {KEY}", KEY, "Bearer schlüssel"]
)
async def test_every_route_but_health_needs_the_key(authorization: str) -> None:
    """Without the right key there is a 401 that does not repeat a key; health stays open."""
    served = Served()
    headers = [(b"authorization", authorization.encode())]
    for method, path in [
        ("GET", "/v1/models"),
        ("GET", "/v1/models/m"),
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/load_lora_adapter"),
        ("POST", "/v1/unload_lora_adapter"),
    ]:
        response = await served.http.request(method, path, json={}, headers=headers)
        assert response.status_code == 401
        assert response.json()["error"]["code"] == "invalid_api_key"
        assert KEY not in response.text
    assert (await served.http.get("/health")).status_code == 200


@pytest.mark.parametrize("name", ["m@4", "nobody", "M", "m@", "base"])
async def test_unknown_names_are_not_found(name: str) -> None:
    """A name that is not served is a 404, and nothing is generated for it."""
    served = Served()
    response = await served.chat(model=name)
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"
    assert served.engine.requests == []
    with pytest.raises(openai.NotFoundError):
        await served.client.models.retrieve(name)


async def test_unknown_paths_and_methods_answer_in_the_same_shape() -> None:
    """A 404 or 405 of the server itself is a JSON error too."""
    served = Served()
    for method, path, status in [("GET", "/v1/nothing", 404), ("GET", "/v1/chat/completions", 405)]:
        response = await served.http.request(method, path)
        assert response.status_code == status
        assert path in response.json()["error"]["message"]


async def test_the_model_list_names_what_is_served() -> None:
    """The base model, the bare name and the steps, each with the step it leads to."""
    served = Served()
    listed = {
        model.id: model.model_dump()["checkpoint_step"]
        async for model in served.client.models.list()
    }
    assert listed == {"base/model": None, "m": 7, "m@3": 3, "m@7": 7}
    assert (await served.client.models.retrieve("base/model")).id == "base/model"


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


async def test_the_client_reads_the_stream_and_its_usage() -> None:
    """The plain client gets the text, and the token counts in a last chunk when it asks."""
    served = Served()
    stream = await served.client.chat.completions.create(
        model="m",
        messages=USER,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == "Hello"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 6


async def test_a_failing_engine_is_a_500_with_its_words() -> None:
    """An engine's error reaches the caller, in the stream as an event on which the client raises."""
    served = Served()
    served.engine.fails_with = "out of memory"
    response = await served.chat()
    assert response.status_code == 500
    assert "out of memory" in response.json()["error"]["message"]
    stream = await served.client.chat.completions.create(model="m", messages=USER, stream=True)
    with pytest.raises(openai.APIError, match="out of memory"):
        [chunk async for chunk in stream]


async def test_health_tells_a_failed_engine() -> None:
    """Health is 503 with the reason when the engine can answer nothing any more."""
    served = Served()
    assert (await served.http.get("/health")).json() == {"status": "ok", "requests_in_flight": 0}
    served.engine.failure = "its thread has died"
    response = await served.http.get("/health")
    assert response.status_code == 503
    assert response.json()["status"] == "its thread has died"


async def test_loading_an_adapter_serves_it() -> None:
    """A loaded adapter answers under its name, and under the bare name if it is the latest."""
    served = Served()
    load = {"lora_name": "m@8", "lora_path": "/checkpoints/0008"}
    assert (await served.http.post("/v1/load_lora_adapter", json=load)).status_code == 200
    assert (await served.chat(model="m@8")).json()["choices"][0]["checkpoint_step"] == 8
    assert (await served.chat()).json()["model"] == "m@7"
    await served.http.post("/v1/load_lora_adapter", json={**load, "latest": True})
    assert (await served.chat()).json()["model"] == "m@8"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"lora_name": "m", "lora_path": "/x"}, "lora_name"),
        ({"lora_name": "base/model", "lora_path": "/x"}, "lora_name"),
        ({"lora_path": "/x"}, "lora_name"),
        ({"lora_name": "m@8"}, "lora_path"),
        ({"lora_name": "m@8", "lora_path": "/bad"}, "lora_path"),
    ],
)
async def test_an_adapter_that_cannot_be_served_is_refused(
    body: dict[str, Any], param: str
) -> None:
    """A bad name or an adapter that does not fit is a 400, and its name stays unknown."""
    served = Served()
    response = await served.http.post("/v1/load_lora_adapter", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert (await served.chat(model="m@8")).status_code == 404


async def test_loading_a_name_again_replaces_it_while_old_requests_finish() -> None:
    """New requests get the new adapter at once; the old one is unloaded when its last request has ended."""
    served = Served()
    served.engine.loaded["slot1"] = "/old"
    served.engine.go_on.clear()
    old = asyncio.create_task(served.chat(model="m@7"))
    while not served.engine.requests:
        await asyncio.sleep(0)
    load = {"lora_name": "m@7", "lora_path": "/new"}
    await served.http.post("/v1/load_lora_adapter", json=load)
    assert set(served.engine.loaded) == {"slot1", "slot2"}
    new = asyncio.create_task(served.chat(model="m"))
    while len(served.engine.requests) < 2:
        await asyncio.sleep(0)
    served.engine.go_on.set()
    assert (await old).json()["choices"][0]["message"]["content"] == "Hello"
    assert (await new).json()["choices"][0]["message"]["content"] == "Hello"
    assert [request.adapter for request in served.engine.requests] == ["slot1", "slot2"]
    while "slot1" in served.engine.loaded:
        await asyncio.sleep(0)
    assert set(served.engine.loaded) == {"slot2"}


@pytest.mark.parametrize("stream", [False, True])
async def test_an_unloaded_name_is_gone_at_once_while_requests_in_flight_finish(
    stream: bool,
) -> None:
    """New requests get a 404 although one is still answered; the unload ends after that answer is whole."""
    served = Served()
    served.engine.loaded["slot1"] = "/seven"
    served.engine.go_on.clear()
    in_flight = asyncio.create_task(served.chat(model="m@7", stream=stream))
    while not served.engine.requests:
        await asyncio.sleep(0)
    unload = asyncio.create_task(
        served.http.post("/v1/unload_lora_adapter", json={"lora_name": "m@7"})
    )
    while served.names.resolve("m@7") is not None:
        await asyncio.sleep(0)
    for name in ("m@7", "m"):
        assert (await served.chat(model=name)).status_code == 404
    assert not unload.done()
    assert "slot1" in served.engine.loaded
    served.engine.go_on.set()
    assert "o" in (await in_flight).text
    assert (await in_flight).status_code == 200
    assert (await unload).status_code == 200
    assert "slot1" not in served.engine.loaded


async def test_requests_that_outlive_the_drain_time_end_with_a_clear_error() -> None:
    """A request still running when the drain time is over is told that its checkpoint was deleted."""
    served = Served(drain_s=0.01)
    served.engine.go_on.clear()
    in_flight = asyncio.create_task(served.chat(model="m@7"))
    while not served.engine.requests:
        await asyncio.sleep(0)
    await served.http.post("/v1/unload_lora_adapter", json={"lora_name": "m@7"})
    response = await in_flight
    assert response.status_code == 410
    assert "'m@7' was deleted" in response.json()["error"]["message"]


@pytest.mark.parametrize("name", ["m@4", "m", "base/model"])
async def test_only_served_steps_can_be_unloaded(name: str) -> None:
    """Anything else is a 404 and stays as it was."""
    served = Served()
    response = await served.http.post("/v1/unload_lora_adapter", json={"lora_name": name})
    assert response.status_code == 404
    assert len(served.names.listing()) == 4


async def test_a_draining_gateway_refuses_new_requests_and_finishes_old_ones() -> None:
    """From `drain` on new completions and health are 503, and `drain` returns when the old ones have ended."""
    served = Served()
    served.engine.go_on.clear()
    in_flight = asyncio.create_task(served.chat())
    while not served.engine.requests:
        await asyncio.sleep(0)
    draining = asyncio.create_task(served.gateway.drain())
    await asyncio.sleep(0)
    response = await served.chat()
    assert response.status_code == 503
    assert response.json()["error"]["type"] == "server_error"
    assert (await served.http.get("/health")).status_code == 503
    assert not draining.done()
    served.engine.go_on.set()
    assert (await in_flight).status_code == 200
    await draining


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_cancels_the_work(stream: bool) -> None:
    """When the connection closes, the engine's generator is closed and the request no longer counts."""
    served = Served()
    served.engine.go_on.clear()
    gone = asyncio.Event()
    body = json.dumps({"model": "m@7", "messages": USER, "stream": stream}).encode()
    incoming = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if incoming:
            return incoming.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(_message: Any) -> None:
        pass

    scope = {
        "type": "http",
        "asgi": {"spec_version": "2.3"},
        "method": "POST",
        "path": "/v1/chat/completions",
        "query_string": b"",
        "headers": [(b"authorization", f"Bearer {KEY}".encode())],
    }
    task = asyncio.create_task(served.gateway.app(scope, receive, send))
    while not served.engine.requests:
        await asyncio.sleep(0)
    health = (await served.http.get("/health")).json()
    assert health["requests_in_flight"] == 1
    gone.set()
    await task
    assert served.engine.cancelled.is_set()
    assert (await served.http.get("/health")).json()["requests_in_flight"] == 0
