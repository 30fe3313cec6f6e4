"""The OpenAI-compatible front of an inference engine, as a starlette app. Free of torch.

Routes, all but the first behind the Bearer key:

- `GET /health`
- `GET /v1/models`, `GET /v1/models/{name}`
- `POST /v1/chat/completions`
- `POST /v1/load_lora_adapter` `{"lora_name": "m@4", "lora_path": "...", "latest": true}`
- `POST /v1/unload_lora_adapter` `{"lora_name": "m@3"}`: the name is unknown at once; the answer comes when the
  requests in flight have ended, so the files may be deleted then.
- `POST /v1/sleep` `{}`: completions wait from now on; the answer comes when those in flight have ended, or had time
  to, and the engine sleeps.
- `POST /v1/wake_up` `{}`: the engine wakes, and those who wait go on in the order in which they came.

Loading and unloading are spelled as vLLM spells them; both go on while the engine sleeps. Import this module only
where a server runs: it needs starlette, which comes with the extra `local`.
"""

from __future__ import annotations

import asyncio
import hmac
from contextlib import ExitStack, aclosing
from typing import TYPE_CHECKING, Any

from art.adapter_kit.api_error import ApiError
from art.adapter_kit.pause import Pause
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

    from art.adapter_kit.engine_protocol import ChatEngine, PreparedChat
    from art.adapter_kit.served_names import Served, ServedNames


class Gateway:
    """Answers OpenAI-style requests with an engine.

    Args:
        engine: What answers.
        names: Which names lead to which weights; the gateway keeps it up to date.
        api_key: The Bearer key that requests must show.
        drain_s: Seconds that requests in flight are given when their checkpoint is unloaded, the engine is put to
            sleep, or the server stops.
        pause_timeout_s: Seconds that a request waits for a sleeping engine before it is a 503.

    Attributes:
        app: The ASGI app.
    """

    def __init__(
        self,
        engine: ChatEngine,
        names: ServedNames,
        *,
        api_key: str,
        drain_s: float = 30.0,
        pause_timeout_s: float = 3600.0,
    ) -> None:
        self._engine = engine
        self._names = names
        self._key = api_key.encode()
        self._drain_s = drain_s
        self._pause_timeout_s = pause_timeout_s
        self._requests = InFlight()
        self._pause = Pause()
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
                Route("/v1/sleep", self._guarded(self._sleep), methods=["POST"]),
                Route("/v1/wake_up", self._guarded(self._wake), methods=["POST"]),
            ],
            exception_handlers={HTTPException: on_http_exception, Exception: on_exception},
        )

    async def drain(self) -> None:
        """Refuse new completions from now on, and wait up to `drain_s` for those in flight."""
        self._closing = True
        self._pause.end()  # who waits is refused as well
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

    async def _sleep(self, request: Request) -> Response:
        await json_object(request)
        async with self._pause.changing:
            if not self._pause.is_on:
                self._pause.begin()
                try:
                    await self._requests.drained(self._drain_s)
                    await self._engine.sleep()
                except BaseException:  # also when cancelled: nobody else would end the pause
                    self._pause.end()
                    raise
        return JSONResponse({"status": "asleep"})

    async def _wake(self, request: Request) -> Response:
        await json_object(request)
        async with self._pause.changing:
            if self._pause.is_on:
                await self._engine.wake()
                self._pause.end()
        return JSONResponse({"status": "awake"})

    # --- chats

    async def _chat(self, request: Request) -> Response:
        body = await json_object(request)
        name = body.get("model")
        if not isinstance(name, str):
            raise ApiError(400, "model must be a string.", param="model")
        self._refuse_when_closing()
        self._resolve(name)
        chat = await self._engine.prepare(body)
        await self._until_awake(request)
        # Again, and no await from here to the lease: what is unloaded meanwhile answers nothing.
        self._refuse_when_closing()
        served = self._resolve(name)
        with ExitStack() as leases:
            leases.enter_context(served.requests.lease())
            leases.enter_context(self._requests.lease())
            if not chat.is_streamed:
                answer = self._completion(chat, served)
                return JSONResponse(await unless_disconnected(request, answer))
            events = self._events(chat, served)
            # The first event is awaited here, so that what fails before it has a status of its own.
            first = await unless_disconnected(request, anext(events))
            return EventStream(first, events, leases.pop_all())

    def _resolve(self, name: str) -> Served:
        served = self._names.resolve(name)
        if served is None:
            raise ApiError(
                404, self._names.why_unknown(name), param="model", code="model_not_found"
            )
        return served

    def _refuse_when_closing(self) -> None:
        if self._closing:
            raise ApiError(503, "The server is shutting down.", code="shutting_down")

    async def _until_awake(self, request: Request) -> None:
        """Return at once, or when the engine has woken; nothing else runs between that and the return."""
        try:
            async with asyncio.timeout(self._pause_timeout_s):
                while self._pause.is_on:
                    await unless_disconnected(request, self._pause.over())
        except TimeoutError:
            message = (
                f"The engine was put to sleep, and not woken within {self._pause_timeout_s:g} s."
            )
            raise ApiError(503, message, code="asleep") from None

    async def _completion(self, chat: PreparedChat, served: Served) -> dict[str, Any]:
        try:
            return await chat.completion(served)
        except InferenceError as error:
            raise self._inference_failed(error, served) from error

    async def _events(self, chat: PreparedChat, served: Served) -> AsyncGenerator[str, None]:
        """The server-sent events of a streamed answer; ApiError where there is not even a first one."""
        has_begun = False
        try:
            async with aclosing(chat.chunks(served)) as chunks:
                async for chunk in chunks:
                    yield sse(chunk)
                    has_begun = True
        except (ApiError, InferenceError) as error:
            if isinstance(error, InferenceError):
                error = self._inference_failed(error, served)
            if not has_begun:
                raise error from None
            yield sse(error.body())  # the status is sent already; clients raise on an `error` event
            return
        yield "data: [DONE]\n\n"

    def _inference_failed(self, error: InferenceError, served: Served) -> ApiError:
        if served.retired:
            message = (
                f"The checkpoint {served.name!r} was deleted while it was answering this request."
            )
            return ApiError(410, message, param="model", code="model_deleted")
        status = 503 if self._closing else 500
        return ApiError(status, f"Inference failed: {error}", code="inference_failed")

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
            except InferenceError as error:
                return error_response(ApiError(500, str(error), code="inference_failed"))

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
