"""Mutants that reckon with one train, one model or one event loop only, or hold that loop up."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from art_conformance.adapter import Received
from art_conformance.mutants import mutant
from art_conformance.reference import ReferenceBackend

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection
    from pathlib import Path

    import art

_LONG_S = 0.4


@mutant(killed_by=("CONC-05",))
class KnowsOneModelAtATime(ReferenceBackend):
    """The model of a train is kept on the backend, so that a second train's takes its place."""

    async def _train_model(
        self, model: Any, *args: Any, **kwargs: Any
    ) -> AsyncIterator[dict[str, float]]:
        self._present = model
        async for event in super()._train_model(model, *args, **kwargs):
            yield event

    async def _commit(self, model: Any, step: int, weight: float) -> None:
        del model
        await asyncio.sleep(0.02)
        await super()._commit(self._present, step, weight)


@mutant(killed_by=("CONC-16",))
class SendsTheLastBatch(ReferenceBackend):
    """What is to be sent is kept on the backend until it is sent, and a second train writes over it."""

    async def _train_model(
        self, model: Any, trajectory_groups: Any, config: Any, *args: Any, **kwargs: Any
    ) -> AsyncIterator[dict[str, float]]:
        self._batch, self._rate = trajectory_groups, config.learning_rate
        await asyncio.sleep(0.1)
        async for event in super()._train_model(model, trajectory_groups, config, *args, **kwargs):
            yield event

    def _received(self, model: Any, groups: list[art.TrajectoryGroup], config: Any) -> None:
        del groups
        count = sum(len(group.trajectories) for group in self._batch)
        received = Received(self._rate, config.target_step, count)
        self.sent.setdefault((model.project, model.name), []).append(received)


@mutant(killed_by=("CONC-06",))
class BlocksWhileTraining(ReferenceBackend):
    """The event loop stands still while it trains."""

    def _update(self, group: art.TrajectoryGroup, learning_rate: float) -> float:
        time.sleep(_LONG_S)
        return super()._update(group, learning_rate)


@mutant(killed_by=("CONC-06",))
class BlocksWhileDeleting(ReferenceBackend):
    """The event loop stands still while it deletes."""

    def _doomed(self, directory: Path, kept: Collection[int]) -> list[int]:
        time.sleep(_LONG_S)
        return super()._doomed(directory, kept)


@mutant(killed_by=("CONC-06",))
class BlocksWhileRegistering(ReferenceBackend):
    """The event loop stands still at every registration."""

    async def register(self, model: Any) -> None:
        """Look whether anything is there, slowly."""
        time.sleep(_LONG_S)  # noqa: ASYNC251
        await super().register(model)


@mutant(killed_by=("CONC-09",), timeout_s=5)
class BelongsToItsFirstLoop(ReferenceBackend):
    """A future of the first event loop is awaited on every one."""

    _loop: asyncio.AbstractEventLoop | None = None

    async def _train_model(self, *args: Any, **kwargs: Any) -> AsyncIterator[dict[str, float]]:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        turn = self._loop.create_future()
        self._loop.call_later(0.05, turn.set_result, None)
        await turn
        async for event in super()._train_model(*args, **kwargs):
            yield event
