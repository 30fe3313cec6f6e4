"""Answers chats with an OpenAI-compatible server, such as vLLM, that runs beside the gateway. Needs no starlette.

Requests pass through as they are, but for what training needs: the name of the weights is the server's, token ids and
log-probabilities are asked for always, and the temperature is spelled out, so that the server's own default never
bends what is sampled. The server checks the rest. What becomes of its answers is told in `upstream_answer`.
"""

from __future__ import annotations

import itertools
import json
import ssl
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import httpx

from art.adapter_kit.api_error import ApiError
from art.adapter_kit.upstream_answer import ChunkRewriter, rewrite_completion

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
    from contextlib import AbstractAsyncContextManager

    from art.adapter_kit.served_names import Served

# Keeps weights loaded while requests use them, and tells the server's name for them. It may be entered by one task
# and left by another.
Using: TypeAlias = "Callable[[Served], AbstractAsyncContextManager[str]]"

_PATH = "/v1/chat/completions"
# vLLM closes an idle connection after 5 s; a request must not be sent into one that is just being closed.
_KEEPALIVE_S = 2.0
_NUM_POOLS = 64
# Options by which an answer is no sample of the policy or lacks a part of it, and what asks for nothing.
_NOT_SAMPLED = {"use_beam_search": False, "include_reasoning": True}
# As much of an error that is no JSON as is shown.
_SHOWN = 500


def unix_socket_client(path: str) -> httpx.AsyncClient:
    """A client of a server that listens on a unix socket: as many connections as there are requests."""
    return httpx.AsyncClient(transport=_ManyPools(path), base_url="http://engine", trust_env=False)


class _ManyPools(httpx.AsyncBaseTransport):
    """Spreads requests over pools of connections.

    For each request a pool looks through all of its connections, several times. With 64 requests at once that was more
    than half of what a request cost.
    """

    def __init__(self, path: str) -> None:
        limits = httpx.Limits(
            max_connections=None, max_keepalive_connections=None, keepalive_expiry=_KEEPALIVE_S
        )
        no_certificates = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # to read them takes long
        self._pools = [
            httpx.AsyncHTTPTransport(uds=path, limits=limits, verify=no_certificates)
            for _ in range(_NUM_POOLS)
        ]
        self._next = itertools.cycle(self._pools)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await next(self._next).handle_async_request(request)

    async def aclose(self) -> None:
        for pool in self._pools:
            await pool.aclose()


class UpstreamChat:
    """Prepares chats that an OpenAI-compatible server answers.

    It is the part of a `ChatEngine` that chats; adapters and sleep are the business of who knows the server.

    Args:
        client: Reaches the server; see `unix_socket_client`. The caller closes it.
        using: Given the weights that are to answer, keeps them loaded and tells the server's name for them. It may
            raise InferenceError.
        silence_s: Seconds that the server may send nothing: until a whole answer, or between two parts of a stream.
    """

    def __init__(
        self, client: httpx.AsyncClient, using: Using, *, silence_s: float = 3600.0
    ) -> None:
        self._client = client
        self._using = using
        self._timeout = httpx.Timeout(silence_s, pool=None)

    async def prepare(self, body: dict[str, Any]) -> UpstreamReply:
        """Check what the gateway itself relies on; ApiError 400. The server checks the rest."""
        if not isinstance(body.get("messages"), list):
            raise ApiError(400, "messages must be a list.", param="messages")
        if not isinstance(body.get("stream"), bool | None):
            raise ApiError(400, "stream must be true or false.", param="stream")
        for name, harmless in _NOT_SAMPLED.items():
            if body.get(name) not in (None, harmless):
                raise ApiError(
                    400,
                    f"{name}={body[name]!r} is not supported: its answers could not be trained on; leave it out.",
                    param=name,
                )
        # Null, an empty list of tools or an empty stop string ask for nothing; the server would refuse some of them.
        given = {name: value for name, value in body.items() if value not in (None, [], "")}
        given["temperature"] = _temperature(body.get("temperature"))
        given.update(logprobs=True, return_token_ids=True)
        return UpstreamReply(self._client, self._using, self._timeout, given)


@dataclass(frozen=True)
class UpstreamReply:
    """A request that waits for the weights that answer it.

    Attributes:
        client: Reaches the server.
        using: Keeps the weights loaded.
        timeout: Of the server's silence.
        body: What the server is asked, but for the name of the weights.
    """

    client: httpx.AsyncClient
    using: Using
    timeout: httpx.Timeout
    body: dict[str, Any]

    @property
    def is_streamed(self) -> bool:
        """Whether the user asked for server-sent events."""
        return bool(self.body.get("stream"))

    async def completion(self, served: Served) -> dict[str, Any]:
        """The whole answer; ApiError where the server, or the way to it, fails."""
        async with self.using(served) as name:
            with _as_api_errors(self.timeout.read):
                response = await self.client.send(self._request(name))
        if response.status_code != 200:
            raise _error_of(response.status_code, response.content)
        return rewrite_completion(_json(response.content), served, self.body["temperature"])

    async def chunks(self, served: Served) -> AsyncGenerator[dict[str, Any], None]:
        """The answer's chunks; closing the generator early closes the connection, which cancels the work."""
        rewriter = ChunkRewriter(served, self.body["temperature"])
        async with self.using(served) as name:
            with _as_api_errors(self.timeout.read):
                response = await self.client.send(self._request(name), stream=True)
                try:
                    if response.status_code != 200:
                        raise _error_of(response.status_code, await response.aread())
                    async for data in _event_data(response):
                        yield rewriter.rewrite(_chunk(data))
                finally:
                    await response.aclose()
        if not rewriter.is_complete:
            raise _unreachable("it ended the stream before the answer")

    def _request(self, name: str) -> httpx.Request:
        # With escapes for all that is not ASCII: JSON can spell what is no Unicode text.
        content = json.dumps({**self.body, "model": name}, separators=(",", ":")).encode()
        headers = {"Content-Type": "application/json"}
        return self.client.build_request(
            "POST", _PATH, content=content, headers=headers, timeout=self.timeout
        )


async def _event_data(response: httpx.Response) -> AsyncIterator[bytes]:
    """The data of each server-sent event but `[DONE]`, one line each, read to the end so that the connection lives on.

    Lines end with a newline alone: other signs that end a line may stand in the JSON.
    """
    rest = b""
    async for part in response.aiter_bytes():
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            data = line.removeprefix(b"data:").strip()
            if line.startswith(b"data:") and data != b"[DONE]":
                yield data


def _chunk(data: bytes) -> dict[str, Any]:
    chunk = _json(data)
    if not isinstance(chunk, dict):
        raise ApiError(502, "The inference engine sent a chunk that is no object.")
    error = chunk.get("error")
    if error is not None:
        status = error.get("code") if isinstance(error, dict) else None
        raise _error_of(status if isinstance(status, int) and status >= 400 else 500, data)
    return chunk


def _temperature(value: object) -> float:
    """The temperature that is asked for, and that the answer is stamped with."""
    if value is None:
        return 1.0
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ApiError(400, "temperature must be a number.", param="temperature")
    # vLLM would quietly take 0.01 for what lies between.
    if not (value == 0 or value >= 0.01):
        raise ApiError(400, "temperature must be 0 (greedy) or at least 0.01.", param="temperature")
    return value


@contextmanager
def _as_api_errors(silence_s: float | None) -> Iterator[None]:
    """Tell failures on the way to the server as errors of this one."""
    try:
        yield
    except (httpx.ReadTimeout, httpx.WriteTimeout) as error:
        message = f"The inference engine was silent for {silence_s:g} s."
        raise ApiError(504, message, code="engine_silent") from error
    except httpx.HTTPError as error:
        raise _unreachable(str(error) or type(error).__name__) from error


def _unreachable(reason: str) -> ApiError:
    message = f"The inference engine does not answer ({reason}); the next train call, or `register`, brings one that has died back."
    return ApiError(503, message, code="engine_unreachable")


def _error_of(status: int, content: bytes) -> ApiError:
    """The server's own error, with its status and its words."""
    status = status if status >= 400 else 502
    try:
        error = json.loads(content)["error"]
        message, param = error["message"], error.get("param")
    except (ValueError, LookupError, TypeError, AttributeError):
        text = content[:_SHOWN].decode(errors="replace")
        return ApiError(status, f"The inference engine answered with status {status}: {text}")
    code = error.get("code")
    return ApiError(
        status,
        str(message),
        param=param if isinstance(param, str) else None,
        code=code if isinstance(code, str) else None,
    )


def _json(content: bytes) -> object:
    try:
        parsed: object = json.loads(content)
    except ValueError as error:
        message = f"The inference engine's answer is not JSON: {error}"
        raise ApiError(502, message, code="bad_answer") from None
    return parsed
