"""One training run: a model that is registered with the adapter's backend, and a record of what passed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import art
from art_conformance.failure import SetupError, Unobservable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from art.backend import Capabilities
    from art.sinks import SinkContext
    from art_conformance.adapter import AnyModel, Fault, Probe, Received
    from art_conformance.recorder import Recorder
    from art_conformance.stage import Stage


@dataclass
class RecordingSink:
    """A metric sink that only remembers.

    Attributes:
        rows: Every (metrics, step), in order.
    """

    rows: list[tuple[dict[str, float], int]] = field(default_factory=list)

    def open(self, context: SinkContext) -> None:
        """Nothing to do."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Remember a row."""
        self.rows.append((dict(metrics), step))

    def close(self) -> None:
        """Nothing to do."""


@dataclass
class Run:
    """A registered model and a record of what passed between it and its backend.

    Attributes:
        stage: Where it takes place.
        model: The model, registered with `recorder`.
        backend: The adapter's backend itself.
        recorder: What stands between the two.
        sink: The model's only metric sink.
        probe: The look inside the backend.
    """

    stage: Stage
    model: AnyModel
    backend: Any
    recorder: Recorder
    sink: RecordingSink
    probe: Probe

    async def groups(self) -> list[art.TrajectoryGroup]:
        """Return a batch that the adapter can train: new objects at every call, the same rollouts."""
        return await self.stage.groups(self.model)

    async def untrainable_groups(self) -> list[art.TrajectoryGroup]:
        """Return a batch without a training signal: all rewards of a group are equal."""
        groups = await self.groups()
        for trajectory in (t for group in groups for t in group.trajectories):
            trajectory.reward = 0.5
        return groups

    async def train(
        self,
        groups: list[art.TrajectoryGroup] | None = None,
        learning_rate: float = 1e-4,
        **options: Any,
    ) -> art.TrainResult:
        """Train one step by `model.train`, on a batch that the adapter can train where none is given."""
        batch = await self.groups() if groups is None else groups
        config = art.TrainConfig(learning_rate=learning_rate)
        dev_config: Any = options
        return await self.model.train(batch, config, dev_config)

    async def settle(self) -> None:
        """Let the frontend ask the backend for its step once more, as it does before every train."""
        await self.model.register(self.model.backend())

    @property
    def capabilities(self) -> Capabilities:
        """What the frontend found the backend to be capable of."""
        return self.model._capabilities

    async def step(self) -> int:
        """Return the step by the books."""
        return await self.model.get_step()

    async def told_step(self) -> int | None:
        """Return the step by the backend, None where it tells none."""
        evidence = self.capabilities.step
        return None if evidence is None else await evidence._get_step(self.model)

    async def checkpoints(self) -> set[int]:
        """Return the steps of the checkpoints that exist: what the probe sees, else what the backend lists.

        Raises:
            Unobservable: Neither shows them.
        """
        try:
            return set(await self._probed("checkpoint_steps", self.model))
        except Unobservable:
            listing = self.capabilities.listing
            if listing is None:
                raise
            return set(await listing._list_checkpoint_steps(self.model))

    async def weights(self, step: int) -> object:
        """Return a digest of a checkpoint's weights; see `Probe.weights`."""
        return await self._probed("weights", self.model, step)

    async def lose(self, step: int) -> None:
        """Make a checkpoint vanish behind the backend's back; see `Probe.lose`."""
        await self._probed("lose", self.model, step)

    async def copy(self, step: int, to: int) -> None:
        """Make another checkpoint of one, behind the backend's back; see `Probe.copy`."""
        await self._probed("copy", self.model, step, to)

    async def fail_next(self, fault: Fault) -> None:
        """Make the next call fail inside the adapter; see `Probe.fail_next`."""
        await self._probed("fail_next", fault)

    async def received(self) -> list[Received]:
        """Return the train calls as they left the adapter; see `Probe.received`."""
        return list(await self._probed("received", self.model))

    async def _probed(self, method: str, *args: Any) -> Any:
        try:
            return await getattr(self.probe, method)(*args)
        except Unobservable as error:
            raise Unobservable(str(error)) from error  # only the suite's own word counts
        except Exception as error:
            raise SetupError(
                f"the probe's {method} raised {type(error).__name__}: {error}"
            ) from error

    @property
    def directory(self) -> Path:
        """The model's directory on disk."""
        return art.model_dir(self.model)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of history.jsonl, oldest first."""
        return _lines(self.directory / "history.jsonl")

    def ledger(self) -> list[dict[str, Any]]:
        """Return the lines of steps.jsonl, oldest first."""
        return _lines(self.directory / "steps.jsonl")


def _lines(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.strip()]
