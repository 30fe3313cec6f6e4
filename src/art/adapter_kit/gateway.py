"""The OpenAI-compatible front of an inference engine, as a starlette app. Free of torch.

Routes, all but the first behind the Bearer key:

- `GET /health`
- `GET /v1/models`, `GET /v1/models/{name}`
- `POST /v1/chat/completions`
- `POST /v1/load_lora_adapter` `{"lora_name": "m@4", "lora_path": "...", "latest": true}`
- `POST /v1/unload_lora_adapter` `{"lora_name": "m@3"}`: the name is unknown at once; the answer comes when the
  requests in flight have ended, so the files may be deleted then.

The last two are spelled as vLLM spells them. Import this module only where a server runs: it needs
starlette, which comes with the extra `local`.
"""

from __future__ import annotations

import asyncio
import hmac
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from art.adapter_kit.api_error import ApiError
from art.adapter_kit.chat_request import ChatRequest, parse_chat_request, template_messages
from art.adapter_kit.chat_response import Reply
from art.adapter_kit.engine_protocol import GenerateRequest
from art.adapter_kit.served_names import InFlight
from art.errors import ConfigurationError, InferenceError, MissingDependencyError

try:
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    from art.adapter_kit.http_parts import (
        EventStream,
        error_response,
        json_body,
        json_object,
        on_exception,
        on_http_exception,
        sse,
        string_field,
        unless_disconnected,
    )
except ImportError as error:
    raise MissingDependencyError(
        "the inference gateway needs starlette; install it with: pip install 'art-rl[local]'"
    ) from error

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from starlette.requests import Request

    from art.adapter_kit.engine_protocol import Engine, TokenEvent
    from art.adapter_kit.served_names import Served, ServedNames


class Gateway:
    """Answers OpenAI-style requests with an engine.

    Args:
        engine: What generates.
        names: Which names lead to which weights; the gateway keeps it up to date.
        api_key: The Bearer key that requests must show.
        drain_s: Seconds that requests in flight are given when their checkpoint is unloaded or the server stops.

    Attributes:
        app: The ASGI app.
    """

    def __init__(
        self, engine: Engine, names: ServedNames, *, api_key: str, drain_s: float = 30.0
    ) -> None:
        self._engine = engine
        self._names = names
        self._key = api_key.encode()
        self._drain_s = drain_s
        self._requests = InFlight()
        # One thread: tokenizers are not made for several at once.
        self._renderer = ThreadPoolExecutor(1, "render")
        self._closing = False
        self._retirements: set[asyncio.Task[None]] = set()
        self.app = Starlette(
            routes=[
                Route("/health", self._health),
                Route("/v1/models", self._guarded(self._list_models)),
                Route("/v1/models/{name:path}", self._guarded(self._retrieve_model)),
                Route("/v1/chat/completions", self._guarded(self._chat), methods=["POST"]),
                Route("/v1/load_lora_adapter", self._guarded(self._load), methods=["POST"]),
                Route("/v1/unload_lora_adapter", self._guarded(self._unload), methods=["POST"]),
            ],
            exception_handlers={HTTPException: on_http_exception, Exception: on_exception},
        )

    async def drain(self) -> None:
        """Refuse new completions from now on, and wait up to `drain_s` for those in flight."""
        self._closing = True
        await self._requests.drained(self._drain_s)

    # --- the routes

    async def _health(self, _request: Request) -> Response:
        failure = "the server is shutting down" if self._closing else self._engine.failure
        state = {"status": failure or "ok", "requests_in_flight": self._requests.count}
        return JSONResponse(state, status_code=503 if failure else 200)

    async def _list_models(self, _request: Request) -> Response:
        data = [_model_entry(name, served) for name, served in self._names.listing()]
        return JSONResponse({"object": "list", "data": data})

    async def _retrieve_model(self, request: Request) -> Response:
        name = request.path_params["name"]
        return JSONResponse(_model_entry(name, self._resolve(name)))

    async def _chat(self, request: Request) -> Response:
        chat = parse_chat_request(await json_body(request))
        if self._closing:
            raise ApiError(503, "The server is shutting down.", code="shutting_down")
        self._resolve(chat.model)
        prompt = await self._render(chat)
        # Again, and no await from here to the lease: what is unloaded meanwhile answers nothing.
        served = self._resolve(chat.model)
        generate = self._generate_request(chat, served, prompt)
        reply = Reply(chat, generate, served, self._engine.token_bytes)
        if chat.stream:
            return EventStream(self._events(reply), leases=(served.requests, self._requests))
        with served.requests.lease(), self._requests.lease():
            events = await unless_disconnected(request, self._collect(reply))
        return JSONResponse(reply.completion(events))

    async def _load(self, request: Request) -> Response:
        body = await json_object(request)
        name, path = string_field(body, "lora_name"), string_field(body, "lora_path")
        if self._names.step_of(name) is None:
            message = f"lora_name must be {self._names.model_name}@STEP, got {name!r}."
            raise ApiError(400, message, param="lora_name")
        adapter = self._names.new_adapter_id()
        try:
            await self._engine.load_adapter(adapter, path)
        except ConfigurationError as error:
            raise ApiError(400, str(error), param="lora_path") from error
        replaced = self._names.publish(name, adapter, latest=bool(body.get("latest", False)))
        if replaced is not None:
            # In the background: the new weights serve already, the old ones only finish what they began.
            task = asyncio.create_task(self._retire(replaced))
            self._retirements.add(task)
            task.add_done_callback(self._retirements.discard)
        return JSONResponse({"status": "loaded", "lora_name": name})

    async def _unload(self, request: Request) -> Response:
        name = string_field(await json_object(request), "lora_name")
        served = self._names.retire(name)
        if served is None:
            raise ApiError(
                404, self._names.why_unknown(name), param="lora_name", code="model_not_found"
            )
        await self._retire(served)
        return JSONResponse({"status": "unloaded", "lora_name": name})

    async def _retire(self, served: Served) -> None:
        """Give the requests on retired weights time to finish; unloading fails those that remain."""
        await served.requests.drained(self._drain_s)
        if served.adapter is not None:
            await self._engine.unload_adapter(served.adapter)

    # --- from request to events

    def _resolve(self, name: str) -> Served:
        served = self._names.resolve(name)
        if served is None:
            raise ApiError(
                404, self._names.why_unknown(name), param="model", code="model_not_found"
            )
        return served

    async def _render(self, chat: ChatRequest) -> list[int]:
        """The prompt's tokens. A long one takes a while, in which other requests go on."""
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._renderer,
                self._engine.render,
                template_messages(chat.messages),
                chat.template_tools,
                chat.chat_template_kwargs or {},
            )
        except ValueError as error:
            raise ApiError(
                400, f"The chat template refuses the messages: {error}", param="messages"
            ) from error

    def _generate_request(
        self, chat: ChatRequest, served: Served, prompt: list[int]
    ) -> GenerateRequest:
        room = self._engine.max_context - len(prompt)
        if room < 1:
            message = (
                f"The prompt has {len(prompt)} tokens; this model's context of {self._engine.max_context} tokens "
                "leaves no room for a completion. Shorten the messages."
            )
            raise ApiError(400, message, param="messages", code="context_length_exceeded")
        wanted = chat.max_completion_tokens or chat.max_tokens or room
        return GenerateRequest(
            prompt_token_ids=tuple(prompt),
            adapter=served.adapter,
            max_tokens=min(wanted, room),
            n=chat.n or 1,
            temperature=1.0 if chat.temperature is None else chat.temperature,
            top_p=1.0 if chat.top_p is None else chat.top_p,
            stop=chat.stop_strings,
            seed=chat.seed,
            top_logprobs=chat.top_logprobs or 0,
            stream=bool(chat.stream),
        )

    async def _generate(self, reply: Reply) -> AsyncGenerator[TokenEvent, None]:
        try:
            async with aclosing(self._engine.generate(reply.request)) as events:
                async for event in events:
                    yield event
        except InferenceError as error:
            if reply.served.retired:
                message = f"The checkpoint {reply.served.name!r} was deleted while it was answering this request."
                raise ApiError(410, message, param="model", code="model_deleted") from error
            status = 503 if self._closing else 500
            raise ApiError(status, f"Inference failed: {error}", code="inference_failed") from error

    async def _collect(self, reply: Reply) -> list[TokenEvent]:
        async with aclosing(self._generate(reply)) as events:
            return [event async for event in events]

    async def _events(self, reply: Reply) -> AsyncGenerator[str, None]:
        """The server-sent events of a streamed answer."""
        streams = reply.stream()
        for stream in streams:
            yield sse(stream.first())
        count = 0
        try:
            async with aclosing(self._generate(reply)) as events:
                async for event in events:
                    count += 1
                    yield sse(streams[event.index].next(event))
        except ApiError as error:  # the status is sent already; clients raise on an `error` event
            yield sse(error.body())
            return
        options = reply.chat.stream_options
        if options is not None and options.include_usage:
            yield sse(reply.chunk([], usage=reply.usage(count)))
        yield "data: [DONE]\n\n"

    # --- who may ask

    def _guarded(
        self, handler: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            try:
                self._authorise(request)
                return await handler(request)
            except ApiError as error:
                return error_response(error)

        return endpoint

    def _authorise(self, request: Request) -> None:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(key.strip().encode(), self._key):
            raise ApiError(
                401,
                "Missing or wrong API key: send `Authorization: Bearer KEY` with the key the server was given.",
                code="invalid_api_key",
            )


def _model_entry(name: str, served: Served) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "art",
        "checkpoint_step": served.step,
    }
