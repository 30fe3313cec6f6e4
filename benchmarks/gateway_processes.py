"""The two servers of `benchmarks.gateway`, each in a process of its own: `python -m benchmarks.gateway_processes`.

`stub SOCKET` answers every chat at once with the same 64 tokens, in vLLM's words. `gateway SOCKET` stands before it as
it stands before vLLM. Either sends a JSON line when it listens, and one with its processor time so far for each line
that it gets; it ends when its stdin does.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import uvicorn

from art.adapter_kit.gateway import Gateway
from art.adapter_kit.served_names import ServedNames
from art.adapter_kit.upstream_chat import UpstreamChat, unix_socket_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from art.adapter_kit.served_names import Served

KEY = "sk-benchmark"
MODEL = "m"
NUM_PROMPT_TOKENS = 256
NUM_TOKENS = 64

_TOKENS = list(range(1000, 1000 + NUM_TOKENS))
_PROMPT = list(range(NUM_PROMPT_TOKENS))
_HEAD = {"id": "chatcmpl-1", "created": 1, "model": "slot0"}


def _entry(token: int) -> dict[str, Any]:
    return {
        "token": "word",
        "logprob": -1.6641522645950317 - token,
        "bytes": [119, 111, 114, 100],
        "top_logprobs": [],
    }


def _completion() -> bytes:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "word" * NUM_TOKENS, "refusal": None},
        "logprobs": {"content": [_entry(token) for token in _TOKENS]},
        "finish_reason": "length",
        "stop_reason": None,
        "token_ids": _TOKENS,
    }
    answer = {
        **_HEAD,
        "object": "chat.completion",
        "choices": [choice],
        "usage": {"prompt_tokens": NUM_PROMPT_TOKENS, "completion_tokens": NUM_TOKENS},
        "prompt_token_ids": _PROMPT,
    }
    return json.dumps(answer, separators=(",", ":")).encode()


def _events() -> list[bytes]:
    head = {**_HEAD, "object": "chat.completion.chunk"}
    first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
    chunks = [{**head, "choices": [first], "prompt_token_ids": _PROMPT}]
    for i, token in enumerate(_TOKENS, start=1):
        choice = {
            "index": 0,
            "delta": {"content": "word"},
            "logprobs": {"content": [_entry(token)]},
            "finish_reason": "length" if i == NUM_TOKENS else None,
            "token_ids": [token],
        }
        chunks.append({**head, "choices": [choice]})
    lines = [json.dumps(chunk, separators=(",", ":")) for chunk in chunks]
    return [f"data: {line}\n\n".encode() for line in [*lines, "[DONE]"]]


class Stub:
    """An ASGI app that costs as little as it can: what it sends was made beforehand."""

    def __init__(self) -> None:
        self._completion = _completion()
        self._events = _events()

    async def __call__(self, _scope: Any, receive: Any, send: Any) -> None:
        """Answer one chat."""
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        is_streamed = json.loads(body).get("stream")
        kind = b"text/event-stream" if is_streamed else b"application/json"
        headers = [(b"content-type", kind)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for event in self._events if is_streamed else [self._completion]:
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


class Engine(UpstreamChat):
    """An engine whose adapters are there already."""

    failure: str | None = None

    async def load_adapter(self, adapter: str, path: str) -> None:
        """Nothing."""

    async def unload_adapter(self, adapter: str) -> None:
        """Nothing."""

    async def sleep(self) -> None:
        """Nothing."""

    async def wake(self) -> None:
        """Nothing."""


@asynccontextmanager
async def _using(served: Served) -> AsyncIterator[str]:
    yield served.adapter or "base"


async def _serve(app: Any, listener: socket.socket) -> None:
    config = uvicorn.Config(
        app, lifespan="off", access_log=False, log_config=None, timeout_keep_alive=75
    )
    threading.Thread(target=_tell, args=(listener.getsockname(),), daemon=True).start()
    await uvicorn.Server(config).serve(sockets=[listener])


def _tell(address: Any) -> None:
    print(json.dumps({"address": address}), flush=True)
    for _ in sys.stdin:
        print(json.dumps({"cpu_s": time.process_time()}), flush=True)
    os._exit(0)


def _listening(listener: socket.socket, address: Any) -> socket.socket:
    listener.bind(address)
    listener.listen(2048)
    return listener


async def _stub(path: str) -> None:
    await _serve(Stub(), _listening(socket.socket(socket.AF_UNIX), path))


async def _gateway(path: str) -> None:
    names = ServedNames(MODEL, "base")
    names.publish(f"{MODEL}@1", names.new_adapter_id(), latest=True)
    async with unix_socket_client(path) as client:
        gateway = Gateway(Engine(client, _using), names, api_key=KEY)
        # With the protocol spelled out, without which asyncio does not set TCP_NODELAY: an answer is written in two
        # parts, and the second would wait up to 40 ms for the first one's acknowledgement.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        await _serve(gateway.app, _listening(listener, ("127.0.0.1", 0)))


if __name__ == "__main__":
    role, socket_path = sys.argv[1:]
    asyncio.run({"stub": _stub, "gateway": _gateway}[role](socket_path))
