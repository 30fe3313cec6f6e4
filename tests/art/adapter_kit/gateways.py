"""A gateway over an engine that answers by a script."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import TYPE_CHECKING, Any, cast

import httpx
import openai
import pytest

from art.adapter_kit.engine_chat import EngineChat
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


class SleepyChat(EngineChat):
    """Chats with a scripted engine, and can sleep; `fails_to` is what it cannot do."""

    def __init__(self, engine: ScriptedEngine) -> None:
        super().__init__(engine)
        self.calls: list[str] = []
        self.fails_to: str | None = None

    async def sleep(self) -> None:
        await self._do("sleep")

    async def wake(self) -> None:
        await self._do("wake")

    async def all_rendered(self) -> None:
        """Return when what came so far is rendered: the renderer has one thread."""
        await asyncio.get_running_loop().run_in_executor(self._renderer, str)

    async def _do(self, what: str) -> None:
        self.calls.append(what)
        await asyncio.sleep(0)
        if self.fails_to == what:
            raise InferenceError(f"cannot {what}")


class Served:
    """A gateway over a scripted engine, with checkpoints 3 and 7 (the latest) of `m`."""

    def __init__(self, script: list[int] | None = None, **options: float) -> None:
        self.engine = ScriptedEngine(script)
        self.chats = SleepyChat(self.engine)
        self.names = ServedNames("m", "base/model")
        for step in (3, 7):
            self.names.publish(f"m@{step}", self.names.new_adapter_id(), latest=step == 7)
        self.gateway = Gateway(self.chats, self.names, api_key=KEY, **options)
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

    async def post(self, route: str, **body: Any) -> httpx.Response:
        return await self.http.post(f"/v1/{route}", json=body)

    async def settled(self) -> None:
        """Return when each request is where it has to wait for something."""
        for _ in range(2):
            for _ in range(50):
                await asyncio.sleep(0)
            await self.chats.all_rendered()
        for _ in range(50):
            await asyncio.sleep(0)

    async def events(self, **body: Any) -> list[dict[str, Any]]:
        response = await self.chat(stream=True, **body)
        lines = [line for line in response.text.split("\n\n") if line]
        return [json.loads(line.removeprefix("data: ")) for line in lines if line != "data: [DONE]"]


def held_rendering(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> tuple[threading.Event, threading.Event]:
    """Let an engine's rendering wait: the first event tells that it has begun, setting the second lets it go on."""
    rendering, go_on = threading.Event(), threading.Event()
    render = engine.render

    def slow(*args: Any) -> list[int]:
        rendering.set()
        go_on.wait()
        result: list[int] = render(*args)
        return result

    monkeypatch.setattr(engine, "render", slow)
    return rendering, go_on
