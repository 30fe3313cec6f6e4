from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import httpx
import openai
import pytest
import uvicorn

from art.adapter_kit.gateway import Gateway
from art.adapter_kit.served_names import Served, ServedNames
from art.adapter_kit.upstream_chat import UpstreamChat, unix_socket_client
from art.errors import InferenceError
from tests.art.adapter_kit.gateways import KEY, USER
from tests.art.adapter_kit.upstreams import END, PROMPT, TEXT, StubUpstream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

TOKENS = [*map(ord, TEXT), END]


class ChatOnly(UpstreamChat):
    """An engine of an upstream whose adapters are there already."""

    failure: str | None = None

    async def load_adapter(self, adapter: str, path: str) -> None: ...
    async def unload_adapter(self, adapter: str) -> None: ...
    async def sleep(self) -> None: ...
    async def wake(self) -> None: ...


class Front:
    """A gateway before an upstream, with checkpoints 3 and 7 (the latest) of `m`."""

    def __init__(self, path: str, silence_s: float = 60.0) -> None:
        self.names = ServedNames("m", "base/model")
        for step in (3, 7):
            self.names.publish(f"m@{step}", self.names.new_adapter_id(), latest=step == 7)
        self.in_use: list[str] = []
        self.cannot_use: str | None = None
        self.upstream = unix_socket_client(path)
        engine = ChatOnly(self.upstream, self.using, silence_s=silence_s)
        self.gateway = Gateway(engine, self.names, api_key=KEY)
        headers = {"Authorization": f"Bearer {KEY}"}
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(self.gateway.app),
            base_url="http://gateway",
            headers=headers,
        )
        self.client = openai.AsyncOpenAI(
            api_key=KEY,
            base_url="http://gateway/v1",
            http_client=cast("Any", self.http),
            max_retries=0,
        )

    @asynccontextmanager
    async def using(self, served: Served) -> AsyncIterator[str]:
        if self.cannot_use is not None:
            raise InferenceError(self.cannot_use)
        name = served.adapter or "base"
        self.in_use.append(name)
        try:
            yield name
        finally:
            self.in_use.remove(name)

    async def chat(self, **body: Any) -> httpx.Response:
        return await self.http.post(
            "/v1/chat/completions", json={"model": "m", "messages": USER, **body}
        )

    async def events(self, **body: Any) -> list[dict[str, Any]]:
        response = await self.chat(stream=True, **body)
        assert response.status_code == 200, response.text
        *lines, last = [line for line in response.text.split("\n\n") if line]
        assert last == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StubUpstream]:
    with StubUpstream(tmp_path_factory.mktemp("upstream") / "engine.sock") as upstream:
        yield upstream


@pytest.fixture
def stub(server: StubUpstream) -> StubUpstream:
    server.reset()
    return server


@pytest.fixture
async def front(stub: StubUpstream) -> AsyncIterator[Front]:
    front = Front(stub.path)
    async with front.upstream:
        yield front
    assert front.in_use == []


async def test_a_choice_carries_what_training_needs_without_being_asked(front: Front) -> None:
    """The plain client finds ids, logprobs, step and temperature on each choice, and the pinned name on the answer."""
    completion = await front.client.chat.completions.create(model="m", messages=USER, n=2)
    assert completion.model == "m@7"
    assert [choice.index for choice in completion.choices] == [0, 1]
    choices: Any = completion.choices
    for choice in choices:
        assert choice.message.content == TEXT
        assert choice.prompt_token_ids == PROMPT
        assert choice.token_ids == TOKENS
        assert choice.checkpoint_step == 7
        assert choice.temperature == 1.0
        assert [token.logprob for token in choice.logprobs.content] == [-t / 100 for t in TOKENS]
    assert completion.usage is not None
    assert completion.usage.total_tokens == 8


async def test_requests_pass_through_but_for_what_training_needs(
    front: Front, stub: StubUpstream
) -> None:
    """The upstream gets every field as it was, its own name of the weights, and is asked for ids and logprobs."""
    options = {
        "n": 2,
        "top_p": 0.5,
        "tools": [{"type": "function", "function": {"name": "look"}}],
        "tool_choice": "required",
        "response_format": {"type": "json_object"},
        "chat_template_kwargs": {"enable_thinking": None},
        "anything": "\ud800",
    }
    body = {"model": "m@03", "messages": USER, "logprobs": False, "return_token_ids": False}
    response = await front.http.post(
        "/v1/chat/completions", content=json.dumps({**body, **options, "temperature": 0})
    )
    assert response.status_code == 200
    assert stub.bodies == [
        {
            "model": "slot0",
            "messages": USER,
            "logprobs": True,
            "return_token_ids": True,
            "temperature": 0,
            **options,
        }
    ]
    answer = response.json()
    assert answer["model"] == "m@3"
    assert [choice["checkpoint_step"] for choice in answer["choices"]] == [3, 3]
    assert [choice["temperature"] for choice in answer["choices"]] == [0, 0]
    assert "prompt_token_ids" not in answer


async def test_null_means_not_given(front: Front, stub: StubUpstream) -> None:
    """Null fields, no tools and no stop string are left out, and the temperature is 1 whatever the upstream would take."""
    await front.chat(temperature=None, n=None, stream=None, tools=[], stop="")
    assert stub.bodies == [
        {
            "model": "slot1",
            "messages": USER,
            "temperature": 1.0,
            "logprobs": True,
            "return_token_ids": True,
        }
    ]


async def test_the_base_model_answers_under_its_own_name(front: Front, stub: StubUpstream) -> None:
    """Its choices have no checkpoint step."""
    body = (await front.chat(model="base/model")).json()
    assert body["model"] == "base/model"
    assert body["choices"][0]["checkpoint_step"] is None
    assert stub.bodies[0]["model"] == "base"


async def test_a_stream_holds_what_the_whole_answer_holds(front: Front) -> None:
    """Put together, the chunks of each choice give the text, ids, logprobs and provenance of the plain answer."""
    whole = (await front.chat(n=2, temperature=0.5)).json()
    chunks = await front.events(n=2, temperature=0.5)
    assert {chunk["model"] for chunk in chunks} == {"m@7"}
    assert not any("prompt_token_ids" in chunk for chunk in chunks)
    for choice in whole["choices"]:
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == choice["index"]]
        assert mine[0]["delta"]["role"] == "assistant"
        assert [c["prompt_token_ids"] for c in mine if "prompt_token_ids" in c] == [PROMPT]
        assert mine[0]["prompt_token_ids"] == PROMPT
        assert "".join(c["delta"].get("content", "") for c in mine) == choice["message"]["content"]
        assert [t for c in mine for t in c.get("token_ids", [])] == choice["token_ids"]
        logprobs = [t for c in mine if c["logprobs"] for t in c["logprobs"]["content"]]
        assert logprobs == choice["logprobs"]["content"]
        assert not any("temperature" in c or "checkpoint_step" in c for c in mine[:-1])
        for key in ("finish_reason", "checkpoint_step", "temperature"):
            assert mine[-1][key] == choice[key]


async def test_prompt_ids_that_come_once_are_given_to_each_choice(
    front: Front, stub: StubUpstream
) -> None:
    """An upstream may send the prompt with the first choice alone."""

    def spoil(chunk: dict[str, Any]) -> None:
        if chunk["choices"][0]["index"] == 1:
            chunk.pop("prompt_token_ids", None)

    stub.spoil = spoil
    chunks = [chunk["choices"][0] for chunk in await front.events(n=2)]
    assert [c["prompt_token_ids"] for c in chunks if "prompt_token_ids" in c] == [PROMPT, PROMPT]


async def test_the_client_reads_the_stream_and_its_usage(front: Front, stub: StubUpstream) -> None:
    """The plain client gets the text, and the upstream's token counts in a last chunk when it asks."""
    stream = await front.client.chat.completions.create(
        model="m", messages=USER, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == TEXT
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 5
    assert stub.bodies[0]["stream_options"] == {"include_usage": True}


async def test_tool_calls_of_the_upstream_pass_through(front: Front, stub: StubUpstream) -> None:
    """The upstream's parser made them; the message is handed on as it is."""
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    stub.message = {"role": "assistant", "content": None, "tool_calls": [call], "reasoning": "r"}
    (choice,) = (await front.chat()).json()["choices"]
    assert choice["message"] == {"refusal": None, **stub.message}
    assert choice["finish_reason"] == "tool_calls"


async def test_concurrent_requests_are_answered_by_their_own_weights(
    front: Front, stub: StubUpstream
) -> None:
    """Two requests in flight at once, on different weights, are each stamped with theirs."""
    stub.go_on.clear()
    requests = [asyncio.create_task(front.chat(model=name)) for name in ("m@3", "m@7")]
    for _ in requests:
        await asyncio.to_thread(stub.arrivals.acquire)
    assert sorted(front.in_use) == ["slot0", "slot1"]
    stub.go_on.set()
    answers = [(await request).json() for request in requests]
    assert [answer["model"] for answer in answers] == ["m@3", "m@7"]
    assert [answer["choices"][0]["checkpoint_step"] for answer in answers] == [3, 7]
    assert sorted(body["model"] for body in stub.bodies) == ["slot0", "slot1"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"model": None}, "model"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": None}, "messages"),
        ({"stream": "yes"}, "stream"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": 0.001}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"include_reasoning": False}, "include_reasoning"),
    ],
)
async def test_what_the_gateway_relies_on_is_checked(
    front: Front, stub: StubUpstream, body: dict[str, Any], param: str
) -> None:
    """A field that the gateway reads itself, and cannot, is a 400 that names it."""
    response = await front.chat(**body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert stub.bodies == []


async def test_unknown_names_never_reach_the_upstream(front: Front, stub: StubUpstream) -> None:
    """A name that is not served is a 404, though the upstream might know it."""
    for name in ("m@4", "slot1", "base"):
        assert (await front.chat(model=name)).status_code == 404
    assert stub.bodies == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("status", "content", "message", "param"),
    [
        (400, {"error": {"message": "too long", "param": "max_tokens", "code": 400}}, "too long", "max_tokens"),
        (404, {"error": {"message": "no such", "param": None, "code": 404}}, "no such", None),
        (500, {"error": {"message": "out of memory"}}, "out of memory", None),
        (503, "no JSON", "status 503: no JSON", None),
        (400, {"error": "odd"}, 'status 400: {"error":"odd"}', None),
    ],
)  # fmt: skip
async def test_errors_of_the_upstream_keep_their_status_and_words(
    front: Front,
    stub: StubUpstream,
    stream: bool,
    status: int,
    content: Any,
    message: str,
    param: str | None,
) -> None:
    """What the upstream refuses is refused alike, streamed or not, in OpenAI's shape."""
    stub.refusal = (status, content)
    response = await front.chat(stream=stream)
    assert response.status_code == status
    error = response.json()["error"]
    assert message in error["message"]
    assert error["param"] == param
    assert error["code"] is None


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("status", "content"), [(204, ""), (200, "no JSON"), (302, "")])
async def test_an_answer_that_is_none_is_a_502(
    front: Front, stub: StubUpstream, stream: bool, status: int, content: str
) -> None:
    """A status or a body that no chat server gives is not taken for an answer."""
    stub.refusal = (status, content)
    response = await front.chat(stream=stream)
    assert response.status_code == (503 if stream and status == 200 else 502)
    assert "engine" in response.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_dead_upstream_is_told(tmp_path: Path, stream: bool) -> None:
    """When nobody listens any more, the answer is a 503 that says so."""
    front = Front(str(tmp_path / "engine.sock"))
    async with front.upstream:
        with StubUpstream(tmp_path / "engine.sock"):
            assert (await front.chat()).status_code == 200
        response = await front.chat(stream=stream)
    assert response.status_code == 503
    assert "does not answer" in response.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_silent_upstream_is_given_up(stub: StubUpstream, stream: bool) -> None:
    """When the upstream sends nothing for too long, the answer is a 504 that says so, and the request is ended."""
    front = Front(stub.path, silence_s=1)
    stub.hangs_after = 0
    async with front.upstream:
        response = await front.chat(stream=stream)
        assert response.status_code == 504
        assert "silent for 1 s" in response.json()["error"]["message"]
        await until(lambda: stub.gone == ["stream" if stream else "unary"])


async def test_an_upstream_that_falls_silent_in_a_stream_is_told_in_the_stream(
    stub: StubUpstream,
) -> None:
    """The status is sent already, so the client raises on an error event after what it got."""
    front = Front(stub.path, silence_s=1)
    stub.hangs_after = 2
    async with front.upstream:
        stream = await front.client.chat.completions.create(model="m", messages=USER, stream=True)
        got = [(await anext(stream)).choices[0].delta.content for _ in range(2)]
        with pytest.raises(openai.APIError, match="silent for 1 s"):
            await anext(stream)
    assert got == ["", "a"]


@pytest.mark.parametrize("after", [0, 3])
async def test_a_stream_that_breaks_off_is_no_answer(
    front: Front, stub: StubUpstream, after: int
) -> None:
    """A stream that ends before each choice has ended is an error, not a short answer."""
    stub.breaks_after = after
    response = await front.chat(stream=True, n=2)
    assert response.status_code == (503 if after == 0 else 200)
    assert "[DONE]" not in response.text
    assert "ended the stream before the answer" in response.text


@pytest.mark.parametrize(("token", "status"), [(ord("b"), 200), (None, 429)])
async def test_an_error_in_the_stream_is_handed_on(
    front: Front, stub: StubUpstream, token: int | None, status: int
) -> None:
    """The upstream's error event ends the answer in the upstream's words; as the first event it gives the status."""

    def spoil(chunk: dict[str, Any]) -> None:
        (choice,) = chunk["choices"]
        if choice.get("token_ids") == (token and [token]):
            chunk.clear()
            chunk["error"] = {"message": "too busy", "type": "Busy", "param": None, "code": 429}

    stub.spoil = spoil
    response = await front.chat(stream=True)
    assert response.status_code == status
    last = response.text.split("\n\n")[-2 if status == 200 else -1].removeprefix("data: ")
    assert json.loads(last) == {
        "error": {
            "message": "too busy",
            "type": "invalid_request_error",
            "param": None,
            "code": None,
        }
    }


def drop(*names: str) -> Any:
    return lambda answer: [c.pop(name, None) for c in answer["choices"] for name in names]


def without_prompt(answer: dict[str, Any]) -> None:
    answer.pop("prompt_token_ids", None)


def one_logprob_less(answer: dict[str, Any]) -> None:
    for choice in answer["choices"]:
        (choice["logprobs"] or {"content": [0]})["content"].pop()


def unknown_logprob(value: float | None) -> Any:
    def spoil(answer: dict[str, Any]) -> None:
        for choice in answer["choices"]:
            content = (choice["logprobs"] or {"content": []})["content"]
            content[:] = [{**entry, "logprob": value} for entry in content]

    return spoil


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("spoil", "lacks"),
    [
        (without_prompt, "prompt_token_ids"),
        (drop("token_ids"), "token_ids"),
        (drop("logprobs"), "logprobs"),
        (drop("token_ids", "logprobs"), "token_ids"),
        (one_logprob_less, "logprobs"),
        (unknown_logprob(-9999.0), "logprobs"),
        (unknown_logprob(None), "logprobs"),
    ],
    ids=["prompt", "ids", "logprobs", "both", "fewer", "-9999", "null"],
)
async def test_an_answer_that_could_not_be_trained_on_is_refused(
    front: Front, stub: StubUpstream, stream: bool, spoil: Any, lacks: str
) -> None:
    """A choice without ids, or without a real logprob for each, is a 502 (an error in the stream), not a choice."""
    stub.spoil = spoil
    response = await front.chat(stream=stream)
    assert response.status_code == (200 if stream and spoil is not without_prompt else 502)
    assert f"lacks {lacks}" in response.text
    assert "[DONE]" not in response.text


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_was_broken_off_is_no_sample(
    front: Front, stub: StubUpstream, stream: bool
) -> None:
    """What an engine cut off as it was put to sleep is a 503 that clients try again, not a short choice."""

    def break_off(answer: dict[str, Any]) -> None:
        for choice in answer["choices"]:
            if choice["finish_reason"] is not None:
                choice["finish_reason"] = "abort"

    stub.spoil = break_off
    response = await front.chat(stream=stream)
    assert response.status_code == (200 if stream else 503)
    assert "broke off" in response.text
    assert "[DONE]" not in response.text


@pytest.mark.parametrize("name", ["token_ids", "logprobs"])
async def test_a_gap_in_a_stream_is_refused(front: Front, stub: StubUpstream, name: str) -> None:
    """One chunk in the middle that has text, and lacks its ids or logprobs, makes the answer an error."""

    def spoil(chunk: dict[str, Any]) -> None:
        if chunk["choices"][0]["delta"].get("content") == "b":
            chunk["choices"][0].pop(name)

    stub.spoil = spoil
    response = await front.chat(stream=True)
    assert f"lacks {name}" in response.text
    assert "[DONE]" not in response.text


async def test_a_refused_stream_ends_the_upstream_request(front: Front, stub: StubUpstream) -> None:
    """Once a chunk is refused, the upstream need not go on with the rest."""
    stub.spoil = drop("token_ids")
    stub.hangs_after = 2
    response = await front.chat(stream=True)
    assert "lacks token_ids" in response.text
    await until(lambda: stub.gone == ["stream"])


async def test_an_empty_answer_can_be_trained_on(front: Front, stub: StubUpstream) -> None:
    """A choice of no tokens, with as many logprobs, is whole."""

    def spoil(answer: dict[str, Any]) -> None:
        (choice,) = answer["choices"]
        choice.update(token_ids=[], logprobs={"content": []})

    stub.spoil = spoil
    response = await front.chat()
    assert response.status_code == 200
    assert response.json()["choices"][0]["token_ids"] == []


@pytest.mark.parametrize("stream", [False, True])
async def test_weights_that_cannot_be_used_are_told(front: Front, stream: bool) -> None:
    """A checkpoint that the engine refuses is an error in its words; a deleted one is a 410."""
    front.cannot_use = "the adapter does not fit"
    response = await front.chat(stream=stream)
    assert response.status_code == 500
    assert "does not fit" in response.json()["error"]["message"]
    front.names.resolve("m@7").retired = True  # type: ignore[union-attr]
    assert (await front.chat(stream=stream)).status_code == 410


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_cancels_the_upstream_request(
    front: Front, stub: StubUpstream, stream: bool
) -> None:
    """When the client's connection closes, the upstream sees its own closed, and the weights are free."""
    stub.hangs_after = 2
    config = uvicorn.Config(front.gateway.app, lifespan="off", log_config=None, port=0)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    headers = {"Authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(headers=headers, trust_env=False) as client:
        body = {"model": "m", "messages": USER, "stream": stream}
        request = asyncio.create_task(client.post(url, json=body))
        await until(lambda: stub.is_hanging)
        assert front.in_use == ["slot1"]
        assert stub.gone == []
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        await until(lambda: stub.gone == ["stream" if stream else "unary"])
    await until(lambda: front.in_use == [])
    while (await front.http.get("/health")).json()["requests_in_flight"]:
        await asyncio.sleep(0.002)
    server.should_exit = True
    await serving


async def test_many_requests_run_at_once(front: Front, stub: StubUpstream) -> None:
    """No limit of the client holds back what the upstream could answer."""
    stub.go_on.clear()
    requests = [asyncio.create_task(front.chat()) for _ in range(150)]
    for _ in requests:
        await asyncio.to_thread(stub.arrivals.acquire)
    stub.go_on.set()
    assert {(await request).status_code for request in requests} == {200}


async def test_an_unloaded_name_waits_for_its_requests(front: Front, stub: StubUpstream) -> None:
    """Streamed or not, requests in flight on a deleted checkpoint end whole before the unload is answered."""
    stub.go_on.clear()
    requests = [asyncio.create_task(front.chat(model="m@7", stream=s)) for s in (False, True)]
    for _ in requests:
        await asyncio.to_thread(stub.arrivals.acquire)
    body = {"lora_name": "m@7"}
    unload = asyncio.create_task(front.http.post("/v1/unload_lora_adapter", json=body))
    await until(lambda: front.names.resolve("m@7") is None)
    assert (await front.chat(model="m@7")).status_code == 404
    assert not unload.done()
    stub.go_on.set()
    assert [(await request).status_code for request in requests] == [200, 200]
    assert (await unload).status_code == 200


async def until(condition: Any) -> None:
    """Wait for what another thread or the event loop is about to do."""
    while not condition():
        await asyncio.sleep(0.002)
