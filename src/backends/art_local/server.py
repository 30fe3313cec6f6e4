"""The inference server process: `python -m art_local.server`, configured by one JSON line on stdin.

It sends `{"event": "ready", "port": N}` when it listens, or `{"event": "error", "message": ...}` and exits
with 1. It ends when stdin does (the parent is gone), or gracefully on SIGTERM. Logs go to stderr and hold
neither request bodies nor the key.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import os
import signal
import socket
import sys
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import uvicorn

from art.adapter_kit.gateway import Gateway
from art.adapter_kit.served_names import ServedNames
from art.errors import ConfigurationError
from art_local.child import open_channel
from art_local.pretrained import load_pretrained, model_source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from art_local.child import Channel
    from art_local.engine import LocalEngine

logger = logging.getLogger(__name__)

# Seconds for answers that are written already to leave, once nothing is in flight any more.
CLOSE_S = 2


@dataclass(frozen=True)
class ServerConfig:
    """What the parent sends.

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
        max_rows: Most completions that run at once.
        drain_s: Seconds that requests in flight are given when their checkpoint, or the server, goes.
        threads: Threads that torch computes with.
        device: Where the model runs; by default a GPU if there is one.
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
    max_rows: int = 64
    drain_s: float = 30.0
    threads: int = 1
    device: str | None = None


def main() -> int:
    """Run the server; returns the exit status."""
    # Ctrl+C reaches the whole terminal group, but it is the parent's to act on: it then closes our stdin.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Beside the reading of the configuration: a parent may start us early, to have the slow imports behind it.
    threading.Thread(target=_import_engine, name="imports", daemon=True).start()
    channel = open_channel()
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s"
    )
    for chatty in ("httpx", "uvicorn"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    try:
        config = ServerConfig(**channel.config)
        model_source(config.base_model)
        with contextlib.closing(_listen(config.host, config.port)) as listener:
            asyncio.run(_serve(config, listener, channel))
    except ConfigurationError as error:
        channel.send({"event": "error", "message": str(error)})
        return 1
    except Exception as error:  # the parent waits for an event: it must hear of any end
        logger.exception("the inference server failed")
        message = f"the inference server failed: {type(error).__name__}: {error}"
        channel.send({"event": "error", "message": message})
        return 1
    return 0


def _import_engine() -> None:
    with contextlib.suppress(ImportError):  # told by the import in _load_engine
        importlib.import_module("art_local.engine")


def _listen(host: str, port: int) -> socket.socket:
    """Bind first: a port that is taken is told before minutes of loading."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
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


async def _serve(config: ServerConfig, listener: socket.socket, channel: Channel) -> None:
    """Load the model and answer requests until SIGTERM."""
    names = ServedNames(config.model_name, config.base_model_name)
    engine = await asyncio.to_thread(_load_engine, config)
    try:
        _register(config, names, engine)
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
            await asyncio.to_thread(engine.close)  # fails what is still in flight
            server.should_exit = True

        def on_sigterm() -> None:
            tasks.add(asyncio.get_running_loop().create_task(stop()))

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, on_sigterm)
        await server.serve(sockets=[listener])
    finally:
        engine.close()


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


def _load_engine(config: ServerConfig) -> LocalEngine:
    import torch

    from art_local.engine import LocalEngine

    torch.set_num_threads(config.threads)
    model, tokenizer = load_pretrained(config.base_model, config.device)
    return LocalEngine(
        model, tokenizer, max_rows=config.max_rows, max_loaded_adapters=config.max_loaded_adapters
    )


def _register(config: ServerConfig, names: ServedNames, engine: LocalEngine) -> None:
    for entry in config.adapters:
        adapter = names.new_adapter_id()
        engine.register_adapter(adapter, entry["path"])
        names.publish(entry["name"], adapter, latest=entry["name"] == config.latest)


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    # Not sys.exit: a failure may be told while the other thread still imports torch, which cannot be torn down then.
    os._exit(status)
