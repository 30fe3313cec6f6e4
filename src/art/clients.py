"""OpenAI clients of a model's endpoint, one for each event loop."""

from __future__ import annotations

import asyncio
import ipaddress
import threading
import weakref
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from openai import AsyncOpenAI

# A rollout may wait long for its turn in a full batch, but a dead endpoint must show at once.
_TIMEOUT_S = 1200.0
_CONNECT_TIMEOUT_S = 5.0


class ClientCache:
    """The clients of one model. A client's connections belong to the loop that opened them."""

    def __init__(self) -> None:
        self._by_loop: weakref.WeakKeyDictionary[
            asyncio.AbstractEventLoop, dict[tuple[str, str], AsyncOpenAI]
        ] = weakref.WeakKeyDictionary()
        self._outside_loops: dict[tuple[str, str], AsyncOpenAI] = {}
        self._lock = threading.Lock()  # each loop has a thread of its own

    def get(self, base_url: str, api_key: str) -> AsyncOpenAI:
        """Return the running loop's client for an endpoint."""
        with self._lock:
            # Open connections keep their loop alive, so the weak references alone would let go of nothing.
            for ended in [loop for loop in self._by_loop if loop.is_closed()]:
                del self._by_loop[ended]
            try:
                clients = self._by_loop.setdefault(asyncio.get_running_loop(), {})
            except RuntimeError:  # no loop runs here: the client is made ahead of one
                clients = self._outside_loops
        if (base_url, api_key) not in clients:
            clients[base_url, api_key] = _make_client(base_url, api_key)
        return clients[base_url, api_key]

    async def close(self) -> None:
        """Close the running loop's clients; those of loops that ended went with them."""
        with self._lock:
            clients = self._by_loop.pop(asyncio.get_running_loop(), {})
        for client in [*clients.values(), *self._outside_loops.values()]:
            await client.close()
        self._outside_loops.clear()


def _make_client(base_url: str, api_key: str) -> AsyncOpenAI:
    from openai import AsyncOpenAI, DefaultAsyncHttpxClient, Timeout

    timeout = Timeout(_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S)
    # Traffic to this machine must not take the way over a proxy that the environment names.
    http_client = DefaultAsyncHttpxClient(timeout=timeout, trust_env=not _is_loopback(base_url))
    return AsyncOpenAI(base_url=base_url, api_key=api_key, timeout=timeout, http_client=http_client)


def _is_loopback(base_url: str) -> bool:
    host = urlsplit(base_url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return host == "localhost"
