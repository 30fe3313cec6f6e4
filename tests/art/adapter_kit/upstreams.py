"""A small server that answers as vLLM does, on a unix socket and in a thread of its own."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.requests import Request

PROMPT = [1, 2, 3]
TEXT = "ab\u2028c"  # with a sign that ends a line for some, and not in server-sent events
END = 256


def entry(token: int) -> dict[str, Any]:
    return {"token": chr(token), "logprob": -token / 100, "bytes": [token], "top_logprobs": []}


class StubUpstream:
    """Answers each chat with `TEXT`, a token for each character and one for the end.

    What `spoil` does to the answer, or to each chunk, happens before it is sent.
    """

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.reset()
        self._server = uvicorn.Server(
            uvicorn.Config(
                Starlette(routes=[Route("/v1/chat/completions", self._chat, methods=["POST"])]),
                lifespan="off",
                log_config=None,
                timeout_graceful_shutdown=1,
            )
        )
        self._socket = socket.socket(socket.AF_UNIX)
        self._thread = threading.Thread(target=self._serve)

    def reset(self) -> None:
        """Be as at the start."""
        self.bodies: list[dict[str, Any]] = []
        self.is_hanging = False
        self.gone: list[str] = []
        self.refusal: tuple[int, Any] | None = None
        self.hangs_after: int | None = None
        self.breaks_after: int | None = None
        self.spoil: Any = lambda answer: None
        self.message: dict[str, Any] = {"role": "assistant", "content": TEXT}
        self.arrivals = threading.Semaphore(0)
        self.go_on = threading.Event()
        self.go_on.set()

    def __enter__(self) -> StubUpstream:
        self._socket.bind(self.path)
        self._socket.listen(256)
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def stop(self) -> None:
        self.go_on.set()
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._socket]))

    async def _chat(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        self.arrivals.release()
        while not self.go_on.is_set():
            await asyncio.sleep(0.001)
        if self.refusal is not None:
            status, content = self.refusal
            if isinstance(content, str):
                return Response(content, status)
            return JSONResponse(content, status)
        if body.get("stream"):
            return StreamingResponse(self._events(body), media_type="text/event-stream")
        if self.hangs_after is not None:
            await self._hang(request)
        answer = self._completion(body)
        self.spoil(answer)
        return JSONResponse(answer)

    async def _hang(self, request: Request) -> None:
        self.is_hanging = True
        while not await request.is_disconnected():
            await asyncio.sleep(0.001)
        self.gone.append("unary")

    def _head(self, body: dict[str, Any], kind: str) -> dict[str, Any]:
        return {"id": "chatcmpl-1", "object": kind, "created": 1, "model": body["model"]}

    def _completion(self, body: dict[str, Any]) -> dict[str, Any]:
        tokens = [*map(ord, TEXT), END]
        choice: dict[str, Any] = {
            "message": {"refusal": None, **self.message},
            "logprobs": {"content": [entry(token) for token in tokens]}
            if body.get("logprobs")
            else None,
            "finish_reason": "tool_calls" if "tool_calls" in self.message else "stop",
            "stop_reason": None,
            "token_ids": tokens if body.get("return_token_ids") else None,
        }
        return {
            **self._head(body, "chat.completion"),
            "choices": [{"index": i, **choice} for i in range(body.get("n", 1))],
            "usage": {"prompt_tokens": 3, "total_tokens": 8, "completion_tokens": 5},
            "prompt_token_ids": PROMPT if body.get("return_token_ids") else None,
        }

    def _chunks(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        head = self._head(body, "chat.completion.chunk")
        count = range(body.get("n", 1))
        first = {"delta": {"role": "assistant", "content": ""}, "logprobs": None}
        chunks = [
            {
                **head,
                "choices": [{"index": i, **first, "finish_reason": None}],
                "prompt_token_ids": PROMPT,
            }
            for i in count
        ]
        for token in [*map(ord, TEXT), END]:
            rest: dict[str, Any] = {
                "delta": {} if token == END else {"content": chr(token)},
                "logprobs": {"content": [entry(token)]},
                "finish_reason": "stop" if token == END else None,
                "token_ids": [token],
            }
            chunks += [{**head, "choices": [{"index": i, **rest}]} for i in count]
        if (body.get("stream_options") or {}).get("include_usage"):
            chunks.append({**head, "choices": [], "usage": {"completion_tokens": 5}})
        return chunks

    async def _events(self, body: dict[str, Any]) -> AsyncGenerator[str, None]:
        has_ended = False
        try:
            yield ": keep-alive\n\n"
            for number, chunk in enumerate(self._chunks(body)):
                if number == self.breaks_after:
                    break
                if number == self.hangs_after:
                    self.is_hanging = True
                    await asyncio.Event().wait()
                self.spoil(chunk)
                event = f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n"
                yield event[:20]  # events need not come in one piece
                await asyncio.sleep(0)
                yield event[20:]
            else:
                yield "data: [DONE]\n\n"
            has_ended = True
        finally:
            if not has_ended:
                self.gone.append("stream")
