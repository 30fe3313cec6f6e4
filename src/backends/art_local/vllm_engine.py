"""vLLM behind the gateway: chats go to its OpenAI server, adapters come and go under names of their own.

Every adapter gets a name that vLLM has never heard before. Loading new weights under an old name would leave
requests in flight with two policies, and would make vLLM read the files again and again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import httpx

from art.adapter_kit.api_error import ApiError
from art.adapter_kit.upstream_chat import UpstreamChat, unix_socket_client
from art.errors import ConfigurationError, InferenceError
from art_local.adapter_check import check_adapter_fits

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Coroutine, Mapping

    from art.adapter_kit.served_names import Served
    from art.adapter_kit.upstream_chat import UpstreamReply

logger = logging.getLogger(__name__)
T = TypeVar("T")

# vLLM reads an adapter's files in milliseconds; a disk or a queue may make it more.
_LOAD_S = 300.0


@dataclass
class _Adapter:
    """An adapter that requests may name.

    Attributes:
        path: Its directory.
        name: Its name at vLLM.
        is_loaded: Whether vLLM knows it.
        num_requests: How many requests use it.
        forgotten: Set when it was unloaded: vLLM would finish what began on it, however long that takes.
    """

    path: str
    name: str
    is_loaded: bool = False
    num_requests: int = 0
    forgotten: asyncio.Event = field(default_factory=asyncio.Event)


class VllmEngine:
    """A running vLLM server, as the gateway's engine. Lives on one event loop.

    Args:
        socket: The unix socket of vLLM's OpenAI server.
        base_model: Directory or hub id of the base model, which is its name there.
        prefix: Begins the names of this engine's adapters; no other user of the server has it.
        max_loaded: Adapters that vLLM is to know at once, beyond those in use.
    """

    def __init__(self, socket: str, base_model: str, *, prefix: str, max_loaded: int) -> None:
        self._client = unix_socket_client(socket)
        self._base_model = base_model
        self._prefix = prefix
        self._max_loaded = max_loaded
        self._adapters: OrderedDict[str, _Adapter] = OrderedDict()  # least recently used first
        self._loading = asyncio.Lock()
        self._at_work: set[asyncio.Task[None]] = set()
        self._chat = UpstreamChat(self._client, self._using)

    @property
    def failure(self) -> str | None:
        """None: who started vLLM watches it, and requests tell when it is gone."""
        return None

    async def prepare(self, body: dict[str, Any]) -> VllmReply:
        """Check a request."""
        return VllmReply(await self._chat.prepare(body), self._adapters)

    def register_adapter(self, adapter: str, path: str) -> None:
        """Make an adapter directory known under an id without reading it yet."""
        self._adapters[adapter] = _Adapter(path, f"{self._prefix}-{adapter}")

    async def load_adapter(self, adapter: str, path: str) -> None:
        """Make an adapter directory known under a new id, and let vLLM read it.

        Raises:
            ConfigurationError: It does not fit the base model.
            InferenceError: vLLM does not answer.
        """
        self.register_adapter(adapter, path)
        try:
            await self._to_the_end(self._load(self._adapters[adapter]))
        except (ConfigurationError, InferenceError):
            del self._adapters[adapter]
            raise

    async def unload_adapter(self, adapter: str) -> None:
        """Forget an adapter; requests that began on it end."""
        entry = self._adapters.pop(adapter, None)
        if entry is not None:
            entry.forgotten.set()
            await self._to_the_end(self._forget(entry))

    async def sleep(self) -> None:
        """Nothing: the server may be shared, so who started it puts it to sleep."""

    async def wake(self) -> None:
        """Nothing, as with `sleep`."""

    async def close(self) -> None:
        """Let go of the connections."""
        await self._client.aclose()

    @asynccontextmanager
    async def _using(self, served: Served) -> AsyncIterator[str]:
        """Keep weights loaded while a request uses them; gives vLLM's name for them."""
        if served.adapter is None:
            yield self._base_model
            return
        entry = self._adapters.get(served.adapter)
        if entry is None:
            raise _forgotten()
        self._adapters.move_to_end(served.adapter)
        entry.num_requests += 1
        try:
            if not entry.is_loaded:
                try:
                    await self._to_the_end(self._load(entry))
                except ConfigurationError as error:
                    raise InferenceError(str(error)) from error
            yield entry.name
        finally:
            entry.num_requests -= 1

    async def _to_the_end(self, work: Coroutine[Any, Any, None]) -> None:
        """Await some work that goes on when the caller is cancelled: else nobody knew what vLLM has loaded."""
        task = asyncio.ensure_future(work)
        self._at_work.add(task)
        task.add_done_callback(self._done)
        await asyncio.shield(task)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._at_work.discard(task)
        if not task.cancelled():
            task.exception()  # told to the caller, if it still waits

    async def _load(self, entry: _Adapter) -> None:
        async with self._loading:
            if entry.forgotten.is_set():
                raise _forgotten()
            if entry.is_loaded:
                return
            await asyncio.to_thread(check_adapter_fits, entry.path, self._base_model)
            body = {"lora_name": entry.name, "lora_path": entry.path}
            response = await self._post("load_lora_adapter", body)
            if response.is_error:
                raise ConfigurationError(
                    f"vLLM refused the adapter in {entry.path}: {_message(response)}"
                )
            entry.is_loaded = True
            await self._unload_surplus()

    async def _forget(self, entry: _Adapter) -> None:
        async with self._loading:
            await self._unload(entry)

    async def _unload_surplus(self) -> None:
        loaded = [entry for entry in self._adapters.values() if entry.is_loaded]
        surplus = len(loaded) - self._max_loaded
        for entry in loaded[:-1]:
            if surplus > 0 and entry.num_requests == 0:
                surplus -= 1
                try:
                    await self._unload(entry)
                except InferenceError as error:  # no fault of the request that needs the room
                    logger.warning("%s", error)

    async def _unload(self, entry: _Adapter) -> None:
        if not entry.is_loaded:
            return
        entry.is_loaded = False
        try:
            response = await self._post("unload_lora_adapter", {"lora_name": entry.name})
        except InferenceError as error:
            if isinstance(error.__cause__, httpx.ConnectError):
                return  # vLLM is gone, and the adapter with it
            raise
        if response.is_error and response.status_code != httpx.codes.NOT_FOUND:
            raise InferenceError(
                f"vLLM refused to unload the adapter in {entry.path}: {_message(response)}"
            )

    async def _post(self, route: str, body: dict[str, Any]) -> httpx.Response:
        try:
            return await self._client.post(f"/v1/{route}", json=body, timeout=_LOAD_S)
        except httpx.HTTPError as error:
            raise InferenceError(
                f"vLLM does not answer {route}: {type(error).__name__}: {error}"
            ) from error


@dataclass(frozen=True)
class VllmReply:
    """A request that waits for the weights that answer it, and fails when these are unloaded meanwhile."""

    reply: UpstreamReply
    adapters: Mapping[str, _Adapter]

    @property
    def is_streamed(self) -> bool:
        """Whether the user asked for server-sent events."""
        return self.reply.is_streamed

    async def completion(self, served: Served) -> dict[str, Any]:
        """The whole answer."""
        entry = self._entry(served)
        try:
            return await _unless_forgotten(self.reply.completion(served), entry)
        except ApiError as error:
            if not _is_unknown_to_vllm(error, entry):
                raise
        return await _unless_forgotten(self.reply.completion(served), entry)

    async def chunks(self, served: Served) -> AsyncGenerator[dict[str, Any], None]:
        """The answer's chunks."""
        entry = self._entry(served)
        chunks = self.reply.chunks(served)
        try:
            try:
                first = await _unless_forgotten(anext(chunks), entry)
            except ApiError as error:
                if not _is_unknown_to_vllm(error, entry):
                    raise
                chunks = self.reply.chunks(served)
                first = await _unless_forgotten(anext(chunks), entry)
            yield first
            async for chunk in chunks:
                if entry is not None and entry.forgotten.is_set():
                    raise _forgotten()
                yield chunk
        finally:
            await chunks.aclose()

    def _entry(self, served: Served) -> _Adapter | None:
        """The adapter that answers; None for the base model."""
        if served.adapter is None:
            return None
        entry = self.adapters.get(served.adapter)
        if entry is None:
            raise _forgotten()
        return entry


async def _unless_forgotten(work: Awaitable[T], entry: _Adapter | None) -> T:
    """Await some work, but fail when its adapter is unloaded."""
    if entry is None:
        return await work
    task = asyncio.ensure_future(work)
    waits = asyncio.ensure_future(entry.forgotten.wait())
    try:
        await asyncio.wait((task, waits), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise _forgotten()
        return task.result()
    finally:
        task.cancel()
        waits.cancel()
        await asyncio.gather(task, waits, return_exceptions=True)


def _is_unknown_to_vllm(error: ApiError, entry: _Adapter | None) -> bool:
    """Whether vLLM has never heard of an adapter that we loaded: it was started anew for another model."""
    if entry is None or error.status != httpx.codes.NOT_FOUND:
        return False
    entry.is_loaded = False
    return True


def _forgotten() -> InferenceError:
    return InferenceError("its adapter was unloaded")


def _message(response: httpx.Response) -> str:
    return response.text.strip() or f"status {response.status_code}"
