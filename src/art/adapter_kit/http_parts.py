"""Small parts of an OpenAI-style HTTP server on starlette: bodies in, errors out, event streams, disconnects.

Needs starlette; imported by the gateway alone.
"""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, StreamingResponse

from art.adapter_kit.api_error import ApiError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable
    from contextlib import ExitStack

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

logger = logging.getLogger(__name__)
T = TypeVar("T")


class EventStream(StreamingResponse):
    """Server-sent events that count as in flight, and whose source is closed however the sending ends.

    Args:
        first: The first event.
        events: Those after it.
        leases: What counts the request as in flight; let go when the sending ends.
    """

    def __init__(self, first: str, events: AsyncGenerator[str, None], leases: ExitStack) -> None:
        super().__init__(
            self._all(first), media_type="text/event-stream", headers={"Cache-Control": "no-cache"}
        )
        self._events = events
        self._leases = leases

    async def _all(self, first: str) -> AsyncGenerator[str, None]:
        yield first
        async for event in self._events:
            yield event

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events, as ASGI asks."""
        with self._leases:
            async with aclosing(self._events):
                await super().__call__(scope, receive, send)


async def unless_disconnected(request: Request, work: Awaitable[T]) -> T:
    """Await some work, but cancel it when the client goes away."""

    async def disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(disconnected())
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ApiError(499, "The client closed the connection.")  # nobody reads it
        return task.result()
    finally:
        task.cancel()
        watch.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def json_body(request: Request) -> object:
    """The body as JSON; ApiError 400 when it is not."""
    try:
        body: object = json.loads(await request.body())
    except ClientDisconnect:
        raise ApiError(499, "The client closed the connection.") from None  # nobody reads it
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"The request body is not JSON: {error}") from None
    return body


async def json_object(request: Request) -> dict[str, Any]:
    """The body as a JSON object; ApiError 400 when it is not."""
    body = await json_body(request)
    if not isinstance(body, dict):
        raise ApiError(400, "The request body must be a JSON object.")
    return body


def string_field(body: dict[str, Any], name: str) -> str:
    """A field that must be a non-empty string; ApiError 400 naming it when it is not."""
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise ApiError(400, f"{name} must be a string that is not empty.", param=name)
    return value


def sse(body: dict[str, Any]) -> str:
    """One server-sent event."""
    return f"data: {json.dumps(body, ensure_ascii=False, separators=(',', ':'))}\n\n"


def error_response(error: ApiError) -> JSONResponse:
    """The response that an ApiError stands for."""
    return JSONResponse(error.body(), status_code=error.status)


async def on_http_exception(request: Request, error: Exception) -> JSONResponse:
    """Answer an unknown path or method in OpenAI's shape."""
    assert isinstance(error, HTTPException)
    return error_response(ApiError(error.status_code, f"{error.detail}: {request.url.path}"))


async def on_exception(request: Request, error: Exception) -> JSONResponse:
    """Answer a bug in OpenAI's shape; starlette raises it again, so the server's log has the traceback."""
    logger.error("a request to %s failed: %s", request.url.path, type(error).__name__)
    return error_response(ApiError(500, f"Internal error: {type(error).__name__}"))
