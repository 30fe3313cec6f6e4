"""What the processes have in common that put the gateway in front of an engine.

Such a process is configured by one JSON line on stdin. It sends `{"event": "ready", "port": N}` when it listens, or
`{"event": "error", "message": ...}` and ends with status 1. It ends when stdin does (the parent is gone), or
gracefully on SIGTERM. Logs go to stderr and hold neither request bodies nor the key.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import uvicorn

from art.adapter_kit.engine_protocol import ChatEngine
from art.adapter_kit.gateway import Gateway
from art.adapter_kit.served_names import ServedNames
from art.errors import ConfigurationError
from art_local.child import open_channel

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from art_local.child import Channel

logger = logging.getLogger(__name__)

# Seconds for answers that are written already to leave, once nothing is in flight any more.
CLOSE_S = 2


@dataclass(frozen=True)
class GatewayConfig:
    """What the parent sends to every such process.

    Attributes:
        model_name: The trained model's name, `m` in `m@7`.
        base_model: Directory or hub id of the base model.
        base_model_name: The name the base model answers under.
        api_key: The Bearer key.
        host: Address to listen on.
        port: Port to listen on; 0 lets the system choose.
        adapters: `{"name": "m@3", "path": "..."}` each; they are read when first asked for.
        latest: The name among them that the bare name means.
        max_loaded_adapters: Adapters kept in memory.
        drain_s: Seconds that requests in flight are given when their checkpoint, or the server, goes.
    """

    model_name: str
    base_model: str
    base_model_name: str
    api_key: str = field(repr=False)
    host: str = "127.0.0.1"
    port: int = 0
    adapters: tuple[dict[str, str], ...] = ()
    latest: str | None = None
    max_loaded_adapters: int = 8
    drain_s: float = 30.0


class AdapterEngine(ChatEngine, Protocol):
    """An engine that such a process serves."""

    def register_adapter(self, adapter: str, path: str) -> None:
        """Make an adapter directory known under an id without reading it yet."""
        ...

    async def close(self) -> None:
        """Let go of everything; requests in flight fail. Safe to call again."""
        ...


def run_gateway(
    open_engine: Callable[[dict[str, Any]], tuple[GatewayConfig, Awaitable[AdapterEngine]]],
) -> int:
    """Read the configuration, open the engine, and answer requests until SIGTERM or the end of stdin.

    Args:
        open_engine: Reads the parent's message; its awaitable, which may take minutes, is awaited once the port is
            bound. Raises ConfigurationError for what the user has to mend.

    Returns:
        The exit status.
    """
    # Ctrl+C reaches the whole terminal group, but it is the parent's to act on: it then closes our stdin.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = open_channel()
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s"
    )
    for chatty in ("httpx", "uvicorn"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    try:
        config, engine = open_engine(channel.config)
        with contextlib.closing(_listen(config.host, config.port)) as listener:
            asyncio.run(_serve(config, engine, listener, channel))
    except ConfigurationError as error:
        channel.send({"event": "error", "message": str(error)})
        return 1
    except Exception as error:  # the parent waits for an event: it must hear of any end
        logger.exception("the inference server failed")
        message = f"the inference server failed: {type(error).__name__}: {error}"
        channel.send({"event": "error", "message": message})
        return 1
    return 0


def _listen(host: str, port: int) -> socket.socket:
    """Bind first: a port that is taken is told before minutes of loading."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, or asyncio leaves Nagle's algorithm on, which holds back the second write of an answer.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise ConfigurationError(
            f"the inference server cannot listen on {host} port {port}: {error.strerror or error}. "
            "Stop what uses that port, or choose another (0 lets the system choose)"
        ) from error
    return listener


async def _serve(
    config: GatewayConfig,
    opening: Awaitable[AdapterEngine],
    listener: socket.socket,
    channel: Channel,
) -> None:
    """Open the engine and answer requests until SIGTERM."""
    names = ServedNames(config.model_name, config.base_model_name)
    engine = await opening
    try:
        for entry in config.adapters:
            adapter = names.new_adapter_id()
            engine.register_adapter(adapter, entry["path"])
            names.publish(entry["name"], adapter, latest=entry["name"] == config.latest)
        gateway = Gateway(engine, names, api_key=config.api_key, drain_s=config.drain_s)
        port = listener.getsockname()[1]
        server = _Server(
            uvicorn.Config(
                gateway.app,
                lifespan="off",
                access_log=False,
                log_config=None,
                timeout_graceful_shutdown=CLOSE_S,
                timeout_keep_alive=75,
            ),
            on_listening=lambda: channel.send({"event": "ready", "port": port}),
        )
        tasks = set()

        async def stop() -> None:
            await gateway.drain()
            await engine.close()  # fails what is still in flight
            server.should_exit = True

        def on_sigterm() -> None:
            tasks.add(asyncio.get_running_loop().create_task(stop()))

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, on_sigterm)
        await server.serve(sockets=[listener])
    finally:
        await engine.close()


class _Server(uvicorn.Server):
    """A uvicorn server that leaves signals to us and tells when it answers."""

    def __init__(self, config: uvicorn.Config, on_listening: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_listening = on_listening

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_listening()
