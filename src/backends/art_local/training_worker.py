"""The parent's side of a model's training worker; `worker` is the child."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Any

from art.errors import TrainingError
from art_local.checkpoint_files import step_dir
from art_local.errors import error_from_event
from art_local.process import ChildProcess

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from art_local.service_config import ServiceConfig

_CANCEL_GRACE_S = 10.0


class TrainingWorker:
    """The training worker of one model."""

    def __init__(self, config: ServiceConfig) -> None:
        self._config = config
        self._process: ChildProcess | None = None
        self._ready = False

    def spawn(self) -> None:
        """Start the process, so that its imports run while something else is waited for."""
        if self._process is None:
            self._process = ChildProcess(
                "art_local.worker", f"training worker of model {self._config.model_name!r}"
            )

    async def _ensure(self) -> ChildProcess:
        if self._process is not None and self._process.failure() is not None:
            await self.stop()
        self.spawn()
        assert self._process is not None
        if not self._ready:
            self._process.send(dataclasses.asdict(self._config.worker))
            await self._expect("ready", self._config.start_timeout_s)
            self._ready = True
        return self._process

    async def create_step_0(self, work_dir: Path) -> None:
        """Make checkpoint 0: fresh LoRA weights that change nothing yet."""
        process = await self._ensure()
        target = step_dir(self._config.checkpoints, 0)
        process.send(
            {
                "command": "create",
                "to_checkpoint": str(target),
                "work_dir": str(work_dir),
                "step": 0,
            }
        )
        await self._expect("created", self._config.step_timeout_s)

    async def train(self, request_dir: Path) -> AsyncGenerator[dict[str, float]]:
        """Carry out a training request; yields the metrics of each gradient step.

        A consumer that stops early, or is cancelled, cancels the request: afterwards either the checkpoint is
        whole, because it was committed before, or nothing of it is there.
        """
        process = await self._ensure()
        process.send({"command": "train", "request_dir": str(request_dir)})
        ended = False
        try:
            while True:
                event = await self._next_event(self._config.step_timeout_s)
                if event["event"] != "gradient_step":
                    ended = True
                    self._check(event, "trained")
                    return
                yield event["metrics"]
        finally:
            if not ended:
                await self._cancel()

    async def _cancel(self) -> None:
        process = self._process
        if process is None:
            return
        process.send({"command": "cancel"})
        event = {"event": "gradient_step"}
        try:
            while event["event"] == "gradient_step":
                event = await process.next_event(_CANCEL_GRACE_S)
        except TimeoutError:
            await self.stop(grace_s=0.0)
        except asyncio.CancelledError:  # cancelled once more: no time to be gentle
            process.kill()
            raise

    async def _expect(self, name: str, timeout_s: float) -> None:
        self._check(await self._next_event(timeout_s), name)

    async def _next_event(self, timeout_s: float) -> dict[str, Any]:
        assert self._process is not None
        try:
            event = await self._process.next_event(timeout_s)
        except TimeoutError:
            what, tail = self._process.what, self._process.tail()
            await self.stop(grace_s=0.0)
            raise TrainingError(
                f"the {what} gave no sign of life for {timeout_s:g} s and was ended; "
                f"the end of its log:\n{tail}"
            ) from None
        if event["event"] == "exited":
            process = self._process
            await self.stop()
            raise TrainingError(process.failure() or f"the {process.what} ended")
        return event

    def _check(self, event: dict[str, Any], expected: str) -> None:
        if event["event"] != expected:
            tail = self._process.tail() if self._process is not None else ""
            raise error_from_event(event, tail)

    async def stop(self, grace_s: float = 5.0) -> None:
        """End the process. Repeatable."""
        self._ready = False
        if self._process is not None:
            process, self._process = self._process, None
            await process.stop(grace_s)

    def kill(self) -> None:
        """End the process at once, from code that cannot wait. Repeatable."""
        self._ready = False
        if self._process is not None:
            process, self._process = self._process, None
            process.kill()
