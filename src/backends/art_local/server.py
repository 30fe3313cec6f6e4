"""The inference server process with the embedded engine: `python -m art_local.server`; see `gateway_process`."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from art.adapter_kit.engine_chat import EngineChat
from art_local.gateway_process import GatewayConfig, run_gateway
from art_local.pretrained import load_pretrained, model_source

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from art_local.engine import LocalEngine


@dataclass(frozen=True)
class ServerConfig(GatewayConfig):
    """What the parent sends.

    Attributes:
        max_rows: Most completions that run at once.
        threads: Threads that torch computes with.
        device: Where the model runs; by default a GPU if there is one.
    """

    max_rows: int = 64
    threads: int = 1
    device: str | None = None


class EmbeddedEngine(EngineChat):
    """The engine of this process, as the gateway takes it."""

    def __init__(self, engine: LocalEngine) -> None:
        super().__init__(engine)
        self.register_adapter = engine.register_adapter
        self._close = engine.close

    async def close(self) -> None:
        """Stop its thread; requests in flight fail."""
        await asyncio.to_thread(self._close)


def main() -> int:
    """Run the server; returns the exit status."""
    # Beside the reading of the configuration: a parent may start us early, to have the slow imports behind it.
    threading.Thread(target=_import_engine, name="imports", daemon=True).start()
    return run_gateway(_open)


def _open(message: dict[str, Any]) -> tuple[ServerConfig, Awaitable[EmbeddedEngine]]:
    config = ServerConfig(**message)
    model_source(config.base_model)
    return config, asyncio.to_thread(_load, config)


def _import_engine() -> None:
    with contextlib.suppress(ImportError):  # told by the import in _load
        importlib.import_module("art_local.engine")


def _load(config: ServerConfig) -> EmbeddedEngine:
    import torch

    from art_local.engine import LocalEngine

    torch.set_num_threads(config.threads)
    model, tokenizer = load_pretrained(config.base_model, config.device)
    return EmbeddedEngine(
        LocalEngine(
            model,
            tokenizer,
            max_rows=config.max_rows,
            max_loaded_adapters=config.max_loaded_adapters,
        )
    )


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    # Not sys.exit: a failure may be told while the other thread still imports torch, which cannot be torn down then.
    os._exit(status)
