"""The endpoint of the reference: the gateway of `art.adapter_kit` before an engine that reads numbers aloud."""

from __future__ import annotations

import asyncio
import json
import math
import secrets
import socket
import ssl
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import httpx
import uvicorn

from art.adapter_kit.engine_chat import EngineChat
from art.adapter_kit.engine_protocol import TokenEvent
from art.adapter_kit.gateway import Gateway
from art.adapter_kit.served_names import ServedNames
from art.errors import ConfigurationError, InferenceError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.types import ASGIApp

    from art.adapter_kit.engine_protocol import GenerateRequest

_START_S = 10.0
_STOP_S = 5.0
# To read the usual certificates would take longer than a request, which goes to this machine and needs none.
_NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class NumberEngine:
    """Answers with the weight of the checkpoint that it was asked, a token for each byte.

    The weight shows in the log-probabilities too, so that it can be told from a few tokens.

    Attributes:
        max_context: Tokens of a prompt and its answer.
        failure: Always None: it cannot fail.
    """

    max_context = 512
    failure: str | None = None

    def __init__(self) -> None:
        self._weights: dict[str, float] = {}

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        template_options: dict[str, Any],
    ) -> list[int]:
        """Return the bytes of the messages."""
        del template_options
        text = json.dumps([messages, tools], sort_keys=True)
        return list(text.encode())[-256:]

    def token_bytes(self, token_id: int) -> bytes:
        """A token is a byte."""
        return bytes([token_id])

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
        """Say the number."""
        weight = self._weight(request.adapter)
        whole = b"base" if weight is None else f"weight {weight!r}".encode()
        said = whole[: request.max_tokens]
        end: Literal["stop", "length"] = "stop" if said == whole else "length"
        logprob = self._logprob(weight, request)
        for index in range(request.n):
            for i, byte in enumerate(said):
                await asyncio.sleep(0)
                is_last = i == len(said) - 1
                yield TokenEvent(index, byte, logprob, chr(byte), (), end if is_last else None)

    def _weight(self, adapter: str | None) -> float | None:
        if adapter is None:
            return None
        if adapter not in self._weights:
            raise InferenceError(f"the adapter {adapter!r} is unloaded")
        return self._weights[adapter]

    def _logprob(self, weight: float | None, request: GenerateRequest) -> float:
        """Of two tokens, the likelier one's: its logit is higher by more, the more was learned."""
        lead = (1.0 + abs(weight or 0.0)) / (request.temperature or 1.0)
        return -math.log1p(math.exp(-lead))

    async def load_adapter(self, adapter: str, path: str) -> None:
        """Read a checkpoint's number."""
        try:
            weights = json.loads((Path(path) / "weights.json").read_text())
        except OSError as error:
            raise ConfigurationError(f"{path} holds no checkpoint: {error}") from error
        self._weights[adapter] = weights["weight"]

    async def unload_adapter(self, adapter: str) -> None:
        """Forget a number."""
        self._weights.pop(adapter, None)


class Endpoint:
    """Serves one model on this machine, from a thread of its own, so that any event loop may use it.

    Args:
        model_name: The model.
        base_model: Its base model.
        drain_s: Seconds that requests in flight are given.

    Attributes:
        base_url: Where it listens.
        api_key: The key that requests must show.
        engine_class: What generates.
        names_class: What knows which name leads to which weights.
    """

    engine_class: ClassVar[type[NumberEngine]] = NumberEngine
    names_class: ClassVar[type[ServedNames]] = ServedNames

    def __init__(self, model_name: str, base_model: str, *, drain_s: float = 5.0) -> None:
        self.api_key = secrets.token_urlsafe(16)
        self._model_name = model_name
        names = self.names_class(model_name, base_model)
        engine = EngineChat(self.engine_class())
        gateway = Gateway(engine, names, api_key=self.api_key, drain_s=drain_s)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.base_url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/v1"
        config = uvicorn.Config(self._front(gateway), log_config=None, lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, name="reference-endpoint", daemon=True)

    def _front(self, gateway: Gateway) -> ASGIApp:
        """What the server hands requests to."""
        return gateway.app

    def _serve(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._socket]))

    @property
    def failure(self) -> str | None:
        """Why it does not answer any more, or None."""
        return None if self._thread.is_alive() else "the endpoint was closed"

    async def start(self) -> None:
        """Start to serve, and return when it answers."""
        self._thread.start()
        async with asyncio.timeout(_START_S):
            while not self._server.started:  # noqa: ASYNC110 - uvicorn tells it by nothing else
                await asyncio.sleep(0.005)

    async def publish(self, step: int, path: Path) -> None:
        """Serve a checkpoint as the latest, by its own name too."""
        body = {"lora_name": f"{self._model_name}@{step}", "lora_path": str(path), "latest": True}
        await self._post("load_lora_adapter", body)

    async def withdraw(self, step: int) -> None:
        """Stop to serve a checkpoint; return when the requests in flight have ended."""
        await self._post("unload_lora_adapter", {"lora_name": f"{self._model_name}@{step}"})

    async def _post(self, route: str, body: dict[str, Any]) -> None:
        headers = {"Authorization": f"Bearer {self.api_key}"}
        async with httpx.AsyncClient(
            trust_env=False, timeout=30.0, verify=_NO_CERTIFICATES
        ) as client:
            answer = await client.post(f"{self.base_url}/{route}", json=body, headers=headers)
        if answer.status_code not in {200, 404}:
            raise InferenceError(f"{route} was refused: {answer.text}")

    async def close(self) -> None:
        """Stop. Repeatable."""
        self._server.should_exit = True
        await asyncio.to_thread(self._thread.join, _STOP_S)
        self._socket.close()
