from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest

from tests.art.adapter_kit.gateways import KEY, USER, Served, held_rendering


async def test_the_base_model_answers_under_its_own_name() -> None:
    """Its choices have no checkpoint step."""
    served = Served()
    body = (await served.chat(model="base/model")).json()
    assert body["model"] == "base/model"
    assert body["choices"][0]["checkpoint_step"] is None
    assert served.engine.requests[0].adapter is None


@pytest.mark.parametrize("content", [b"{", b"[]", b'"m"', b"\xff"])
async def test_a_body_that_is_no_object_is_refused(content: bytes) -> None:
    """Anything but a JSON object is a 400."""
    served = Served()
    for path in ("chat/completions", "load_lora_adapter", "unload_lora_adapter"):
        assert (await served.http.post(f"/v1/{path}", content=content)).status_code == 400


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
        ("POST", "/v1/sleep"),
        ("POST", "/v1/wake_up"),
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


# --- pause


@pytest.mark.parametrize("stream", [False, True])
async def test_requests_wait_while_the_engine_sleeps_and_go_on_in_order(stream: bool) -> None:
    """Nothing is refused and nothing generated until the engine has woken; then who came first is first."""
    served = Served()
    assert (await served.post("sleep")).json() == {"status": "asleep"}
    waiting = []
    for i in range(5):
        waiting.append(asyncio.create_task(served.chat(seed=i, stream=stream)))
        await served.settled()
    assert served.engine.requests == []
    assert served.chats.calls == ["sleep"]
    assert (await served.http.get("/health")).json() == {"status": "ok", "requests_in_flight": 0}
    assert (await served.post("wake_up")).json() == {"status": "awake"}
    answers = await asyncio.gather(*waiting)
    assert [answer.status_code for answer in answers] == [200] * 5
    assert [request.seed for request in served.engine.requests] == [0, 1, 2, 3, 4]
    assert served.chats.calls == ["sleep", "wake"]


async def test_requests_go_on_waiting_when_the_engine_is_put_to_sleep_again_at_once() -> None:
    """Who waited, and could not go on before the next pause began, waits for the end of that."""
    served = Served()
    await served.post("sleep")
    waiting = asyncio.create_task(served.chat())
    await served.settled()
    await asyncio.gather(served.post("wake_up"), served.post("sleep"))
    await served.settled()
    assert served.chats.calls == ["sleep", "wake", "sleep"]
    assert served.engine.requests == []
    await served.post("wake_up")
    assert (await waiting).status_code == 200


async def test_sleep_and_wake_can_be_repeated() -> None:
    """Asked for what is so already, the gateway answers, and does not ask the engine again."""
    served = Served()
    for route in ("wake_up", "sleep", "sleep", "wake_up", "wake_up"):
        assert (await served.post(route)).status_code == 200
    assert served.chats.calls == ["sleep", "wake"]
    both = await asyncio.gather(served.post("sleep"), served.post("sleep"))
    assert [answer.status_code for answer in both] == [200, 200]
    assert served.chats.calls == ["sleep", "wake", "sleep"]


async def test_the_engine_sleeps_only_when_the_requests_in_flight_have_ended() -> None:
    """What has begun goes on to its end first, while what comes then waits already."""
    served = Served()
    served.engine.go_on.clear()
    in_flight = asyncio.create_task(served.chat())
    await served.settled()
    sleeping = asyncio.create_task(served.post("sleep"))
    await served.settled()
    late = asyncio.create_task(served.chat())
    await served.settled()
    assert served.chats.calls == []
    assert len(served.engine.requests) == 1
    served.engine.go_on.set()
    assert (await in_flight).status_code == 200
    assert (await sleeping).status_code == 200
    assert served.chats.calls == ["sleep"]
    assert not late.done()
    await served.post("wake_up")
    assert (await late).status_code == 200


async def test_the_engine_sleeps_after_the_drain_time_whatever_is_in_flight() -> None:
    """A request that does not end cannot keep the engine awake."""
    served = Served(drain_s=0.01)
    served.engine.go_on.clear()
    in_flight = asyncio.create_task(served.chat())
    await served.settled()
    assert (await served.post("sleep")).status_code == 200
    assert served.chats.calls == ["sleep"]
    served.engine.go_on.set()
    assert (await in_flight).status_code == 200


async def test_a_request_that_is_rendered_when_the_engine_falls_asleep_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The engine never gets a request that came before the pause and would be generated in it."""
    served = Served()
    rendering, go_on = held_rendering(served.engine, monkeypatch)
    request = asyncio.create_task(served.chat())
    try:
        await asyncio.to_thread(rendering.wait)
        assert (await served.post("sleep")).status_code == 200
    finally:
        go_on.set()
    await served.settled()
    assert served.engine.requests == []
    await served.post("wake_up")
    assert (await request).status_code == 200


async def test_nobody_waits_for_ever_for_a_sleeping_engine() -> None:
    """After the pause's time limit a waiting request is a 503 that says why."""
    served = Served(pause_timeout_s=0.01)
    await served.post("sleep")
    response = await served.chat()
    assert response.status_code == 503
    assert "not woken within 0.01 s" in response.json()["error"]["message"]
    assert served.engine.requests == []


async def test_unknown_names_do_not_wait() -> None:
    """A name that is not served is a 404 at once, asleep or not; one that is deleted meanwhile is one on waking."""
    served = Served()
    await served.post("sleep")
    assert (await served.chat(model="m@4")).status_code == 404
    waiting = asyncio.create_task(served.chat(model="m@7"))
    await served.settled()
    assert (await served.post("unload_lora_adapter", lora_name="m@7")).status_code == 200
    await served.post("wake_up")
    assert (await waiting).status_code == 404
    assert served.engine.requests == []


async def test_adapters_are_loaded_while_the_engine_sleeps() -> None:
    """A step that is published in the pause answers those who waited for the bare name."""
    served = Served()
    await served.post("sleep")
    waiting = asyncio.create_task(served.chat())
    await served.settled()
    load = await served.post(
        "load_lora_adapter", lora_name="m@8", lora_path="/checkpoints/0008", latest=True
    )
    assert load.status_code == 200
    await served.post("wake_up")
    assert (await waiting).json()["model"] == "m@8"


async def test_an_engine_that_cannot_sleep_stays_awake() -> None:
    """The failure is told, and who waited goes on."""
    served = Served()
    served.chats.fails_to = "sleep"
    response = await served.post("sleep")
    assert response.status_code == 500
    assert "cannot sleep" in response.json()["error"]["message"]
    assert (await served.chat()).status_code == 200


async def test_an_engine_that_cannot_wake_can_be_woken_again() -> None:
    """The failure is told, requests go on waiting, and the next attempt lets them pass."""
    served = Served()
    await served.post("sleep")
    waiting = asyncio.create_task(served.chat())
    served.chats.fails_to = "wake"
    assert (await served.post("wake_up")).status_code == 500
    await served.settled()
    assert not waiting.done()
    served.chats.fails_to = None
    assert (await served.post("wake_up")).status_code == 200
    assert (await waiting).status_code == 200


async def test_a_server_that_stops_does_not_let_requests_wait() -> None:
    """`drain` refuses those who wait for a sleeping engine, as it refuses new ones."""
    served = Served()
    await served.post("sleep")
    waiting = asyncio.create_task(served.chat())
    await served.settled()
    await served.gateway.drain()
    assert (await waiting).status_code == 503
    assert served.engine.requests == []
