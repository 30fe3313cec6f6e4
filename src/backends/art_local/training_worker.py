"""The parent's side of a model's training worker; `worker` is the child."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from typing import TYPE_CHECKING, Any

from art.errors import TrainingError
from art_local.checkpoint_files import step_dir
from art_local.child import UNDER_LAUNCHER
from art_local.devices import visible_gpus
from art_local.errors import error_from_event
from art_local.managed_child import ManagedChild
from art_local.process import python_module

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from art_local.process import ChildProcess
    from art_local.service_config import ServiceConfig

_CANCEL_GRACE_S = 10.0


class TrainingWorker:
    """The training worker of one model. It carries out one command at a time."""

    def __init__(self, config: ServiceConfig) -> None:
        self._config = config
        self.child = ManagedChild(
            _command(config.worker.num_processes),
            f"training worker of model {config.model_name!r}",
            TrainingError,
            config.start_timeout_s,
            _environment(config.worker.gpu_ids),
        )

    async def create_step_0(self, work_dir: Path) -> None:
        """Make checkpoint 0: fresh LoRA weights that change nothing yet. Cancelled as `train` is."""
        target = step_dir(self._config.checkpoints, 0)
        command = {
            "command": "create",
            "to_checkpoint": str(target),
            "work_dir": str(work_dir),
            "step": 0,
        }
        async with contextlib.aclosing(self._carry_out(command, "created")) as events:
            async for _ in events:
                pass

    def train(self, request_dir: Path) -> AsyncGenerator[dict[str, float]]:
        """Carry out a training request; yields the metrics of each gradient step.

        A consumer that stops early, or is cancelled, cancels the request: afterwards either the checkpoint is
        whole, because it was committed before, or nothing of it is there.

        Raises:
            TrainingError: It failed, or the worker ended or hung.
        """
        return self._carry_out({"command": "train", "request_dir": str(request_dir)}, "trained")

    async def _carry_out(
        self, command: dict[str, Any], last: str
    ) -> AsyncGenerator[dict[str, float]]:
        process = await self.child.ensure(lambda: dataclasses.asdict(self._config.worker))
        process.send(command)
        ended = False
        try:
            while True:
                event = await self.child.next_event(process, self._config.step_timeout_s)
                if event["event"] != "gradient_step":
                    ended = True
                    break
                yield event["metrics"]
        finally:
            if not ended:
                await _cancel(process)
        if event["event"] != last:
            raise error_from_event(event, process.tail(), TrainingError)


def _command(num_processes: int) -> list[str]:
    worker = python_module("art_local.worker")
    if num_processes == 1:
        return worker
    torchrun = python_module("torch.distributed.run")
    # Named by number, since what this machine's own name resolves to is not for sure.
    here = ["--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={num_processes}"]
    return [*torchrun, *here, "--no-python", *worker, UNDER_LAUNCHER]


def _environment(gpu_ids: tuple[int, ...]) -> dict[str, str] | None:
    if not gpu_ids:
        return None
    return {"CUDA_VISIBLE_DEVICES": visible_gpus(gpu_ids, os.environ.get("CUDA_VISIBLE_DEVICES"))}


async def _cancel(process: ChildProcess) -> None:
    """Abandon the command that runs; a worker that does not react is ended."""
    process.send({"command": "cancel"})
    event = {"event": "gradient_step"}
    try:
        while event["event"] == "gradient_step":
            event = await process.next_event(_CANCEL_GRACE_S)
    except TimeoutError:
        process.kill()
    except asyncio.CancelledError:  # cancelled once more: no time to be gentle
        process.kill()
        raise
