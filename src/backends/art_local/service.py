"""The two processes of one model: an inference server and a training worker, started when first needed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING

from art.adapter_kit.blocking import run_blocking
from art.errors import InferenceError
from art_local.checkpoint_files import list_steps
from art_local.inference_server import InferenceServer
from art_local.loop_free_lock import LoopFreeLock
from art_local.training_worker import TrainingWorker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from contextlib import AbstractAsyncContextManager

    from art_local.service_config import ServiceConfig

logger = logging.getLogger(__name__)


class ModelService:
    """The inference server and the training worker of one model, with the lock between their callers."""

    def __init__(self, config: ServiceConfig) -> None:
        self.config = config
        self.server = InferenceServer(config)
        self.worker = TrainingWorker(config)
        self._lock = LoopFreeLock()
        self._swap_s: float | None = None
        self._trained_at_s: float | None = None
        self._waking: asyncio.Future[None] | None = None  # kept, or it might be collected

    def exclusive(self) -> AbstractAsyncContextManager[None]:
        """Start processes, and change what is served, one caller at a time, whatever event loop they are on."""
        return self._lock.hold()

    async def serve(self, latest: int) -> None:
        """Let the server, if inference was asked for, serve every checkpoint there is.

        Raises:
            InferenceError: The server cannot be brought to it.
        """
        async with self.exclusive():
            if self.server.child.process is not None:
                await self.server.serve(latest)

    async def swap_in(self, latest: int) -> None:
        """Serve the checkpoint that a train call has made; raises as `serve` does."""
        start_s = time.perf_counter()
        await self.serve(latest)
        self._trained_at_s = time.perf_counter()
        self._swap_s = self._trained_at_s - start_s

    def times(self) -> dict[str, float]:
        """Return the seconds between the last train call and now, and what bringing its checkpoint to the server took."""
        if self._trained_at_s is None or self._swap_s is None:
            return {}
        rollout_s = time.perf_counter() - self._trained_at_s
        return {"rollout_s": rollout_s, "swap_s": self._swap_s}

    @contextlib.asynccontextmanager
    async def asleep(self) -> AsyncIterator[None]:
        """Let vLLM, where it is to, leave the GPU to the training worker while the block runs.

        Raises:
            InferenceError: vLLM cannot be brought to sleep.
        """
        if not self.config.sleeps_while_training:
            yield
            return
        try:
            async with self.exclusive():
                await self.server.sleep()
            yield
        finally:
            # Also when cancelled once more: a sleeping server answers nobody.
            self._waking = asyncio.ensure_future(self._wake())
            await asyncio.shield(self._waking)

    async def _wake(self) -> None:
        try:
            async with self.exclusive():
                await self.server.wake()
        except InferenceError as error:
            # What was trained stands. The next `serve` replaces a server that died, and wakes one that did not.
            logger.warning("vLLM did not wake after training: %s", error)

    async def withdraw_all_but(self, steps: Iterable[int]) -> dict[int, InferenceError]:
        """Serve no other checkpoints from now on; waits for the requests in flight on them, up to a time.

        Returns:
            The steps that are served still, and why.
        """
        async with self.exclusive():
            listed = await run_blocking(list_steps, self.config.checkpoints)
            doomed = sorted(set(listed) - set(steps))
            # Each waits for its own requests, so all are withdrawn at once.
            errors = await asyncio.gather(*(self._withdraw(step) for step in doomed))
        return {
            step: error for step, error in zip(doomed, errors, strict=True) if error is not None
        }

    async def _withdraw(self, step: int) -> InferenceError | None:
        try:
            await self.server.withdraw(step)
        except InferenceError as error:
            return error
        return None

    def kill(self) -> None:
        """End both processes at once and for good, from code that cannot wait."""
        self.server.child.kill()
        self.worker.child.kill()

    async def close(self) -> None:
        """End both processes for good. Repeatable."""
        await asyncio.gather(self.server.child.close(), self.worker.child.close())
