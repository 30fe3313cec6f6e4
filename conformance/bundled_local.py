"""LocalBackend, as the conformance suite is shown it: real training and serving of the built-in model.

The probe reads what went to the training worker over the disk, and breaks it there: the worker really fails.
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import json
import os
import signal
from contextlib import aclosing
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import art
from art_conformance import Adapter, Probe, Received
from art_local import LocalBackend, VllmServer, checkpoint_files
from art_local.letters import BASE_MODEL, TRAIN_PHRASINGS, rollout, scenarios
from art_local.train_request import read_request

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from art_conformance import Fault
    from art_local.service import ModelService
    from art_local.training_worker import TrainingWorker

    AnyModel = art.TrainableModel[Any, Any]

_WEIGHTS = checkpoint_files.ADAPTER_WEIGHTS


class WatchedLocalBackend(LocalBackend):
    """LocalBackend whose requests to the training worker are read, and spoilt where a check asks for it.

    Attributes:
        received: Every request, by (project, name).
        fault: What goes wrong next; None for nothing.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.received: dict[tuple[str, str], list[Received]] = {}
        self.fault: Fault | None = None
        self._watched: set[int] = set()

    def _service(self, model: Any) -> ModelService:
        service = super()._service(model)
        if id(service.worker) not in self._watched:
            self._watched.add(id(service.worker))
            received = self.received.setdefault((model.project, model.name), [])
            self._watch(service.worker, received)
        return service

    def _watch(self, worker: TrainingWorker, received: list[Received]) -> None:
        train = worker.train

        async def watched(request_dir: Path) -> AsyncGenerator[dict[str, float]]:
            path = request_dir / "request.json"
            asked, sequences = read_request(request_dir)  # here each rollout is one sequence
            received.append(Received(asked.learning_rate, asked.target_step, len(sequences)))
            request = json.loads(path.read_text())
            fault, self.fault = self.fault, None
            if fault == "train_start":
                request["from_checkpoint"] = str(request_dir / "nowhere")
            elif fault is not None:  # nothing can be written there, so no commit can win a race
                request["work_dir"] = str(path / "no directory")
            path.write_text(json.dumps(request))
            async with aclosing(train(request_dir)) as events:
                async for event in events:
                    if fault == "train_middle":
                        process = worker.child.process
                        assert process is not None
                        os.kill(process.pid, signal.SIGKILL)
                        await process.has_ended(5.0)
                    yield event

        worker.train = watched  # type: ignore[method-assign]  # only here is the request whole and unread

    async def _delete_checkpoint_files(self, model: Any, steps_to_keep: list[int]) -> None:
        move_away = checkpoint_files._move_away
        if self.fault == "delete":
            self.fault = None

            def fail_once(path: Path, target: Path) -> bool:  # noqa: ARG001 - the other's signature
                checkpoint_files._move_away = move_away
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(path))

            checkpoint_files._move_away = fail_once
        try:
            await super()._delete_checkpoint_files(model, steps_to_keep)
        finally:
            checkpoint_files._move_away = move_away


class LocalProbe(Probe):
    """Looks at the checkpoint files, and at what reached the training worker."""

    async def checkpoint_steps(self, model: AnyModel) -> set[int]:
        """Return the directories that hold an adapter's weights."""
        found = art.checkpoints_dir(model).glob(f"[0-9]*/{_WEIGHTS}")
        return {int(path.parent.name) for path in found if not path.parent.is_symlink()}

    async def weights(self, model: AnyModel, step: int) -> object:
        """Return a digest of the weights."""
        path = art.checkpoints_dir(model) / f"{step:04d}" / _WEIGHTS
        return hashlib.sha256(path.read_bytes()).hexdigest()

    async def received(self, model: AnyModel) -> list[Received]:
        """Return what the training worker was asked."""
        return self._watched.received.get((model.project, model.name), [])

    async def fail_next(self, fault: Fault) -> None:
        """Spoil the next request, kill the worker that reads it, or keep one checkpoint from being deleted."""
        self._watched.fault = fault

    @property
    def _watched(self) -> WatchedLocalBackend:
        return cast("WatchedLocalBackend", self.backend)


async def _letters(model: AnyModel) -> list[art.TrajectoryGroup]:
    """Ask the model itself, since only its own tokens can be trained; the rewards are made up."""
    groups = []
    for scenario in scenarios(TRAIN_PHRASINGS)[:3]:
        trajectories = [await rollout(model, scenario, seed=seed) for seed in range(4)]
        for i, trajectory in enumerate(trajectories):
            trajectory.reward = float(i % 2)
        groups.append(art.TrajectoryGroup(trajectories))
    return groups


@cache
def vllm_server() -> VllmServer:
    """One server for every backend that the suite makes, and for other tests: it takes a minute to come up."""
    python = os.environ.get("ART_VLLM_PYTHON", Path(__file__).parents[1] / ".venv-vllm/bin/python")
    server = VllmServer(
        BASE_MODEL, python=python, engine_args={"max_model_len": 512}, start_timeout_s=600.0
    )
    atexit.register(server.kill)
    return server


local = Adapter(
    WatchedLocalBackend,
    base_model=BASE_MODEL,
    make_groups=_letters,
    probe=LocalProbe,
    declines={"sft": "not written yet"},
    timeout_s=180,
)

local_vllm = Adapter(
    lambda: WatchedLocalBackend(inference=vllm_server()),
    base_model=BASE_MODEL,
    make_groups=_letters,
    probe=LocalProbe,
    declines={"sft": "not written yet"},
    timeout_s=400,
)
