"""The two processes of one model: an inference server and a training worker, started when first needed."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from art_local.inference_server import InferenceServer
from art_local.training_worker import TrainingWorker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from art_local.service_config import ServiceConfig


class ModelService:
    """The inference server and the training worker of one model, with the locks between their callers."""

    def __init__(self, config: ServiceConfig) -> None:
        self.config = config
        self.server = InferenceServer(config)
        self.worker = TrainingWorker(config)
        self._locks: dict[asyncio.AbstractEventLoop, asyncio.Lock] = {}

    @contextlib.asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Start and stop processes one caller at a time. A lock belongs to its event loop."""
        loop = asyncio.get_running_loop()
        self._locks = {known: lock for known, lock in self._locks.items() if not known.is_closed()}
        async with self._locks.setdefault(loop, asyncio.Lock()):
            yield

    def kill(self) -> None:
        """End both processes at once, from code that cannot wait."""
        self.server.kill()
        self.worker.kill()

    async def close(self) -> None:
        """End both processes. Repeatable."""
        await asyncio.gather(self.server.stop(), self.worker.stop())
