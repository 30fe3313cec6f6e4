"""Mutants that are cancelled badly."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from art.errors import TrainingError
from art_conformance.mutants import mutant
from art_conformance.reference import ReferenceBackend, checkpoints

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from art.backend import AnyModel


class _Training(ReferenceBackend):
    """The reference with the work before, between and after its events as methods of their own."""

    async def _train_model(self, *args: Any, **kwargs: Any) -> AsyncIterator[dict[str, float]]:
        await self._before()
        async with contextlib.aclosing(super()._train_model(*args, **kwargs)) as stream:  # type: ignore[type-var]
            async for event in stream:
                yield event
                await self._between()

    async def _before(self) -> None:
        """Nothing."""

    async def _between(self) -> None:
        """Nothing."""


@mutant(killed_by=("CONC-01",))
class SwallowsCancellation(_Training):
    """A cancellation while it waits is caught, and the training goes on."""

    async def _between(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.01)


@mutant(killed_by=("CONC-14",))
class SwallowsCancellationAtTheStart(_Training):
    """A cancellation while it gets ready is caught, and the training begins all the same."""

    async def _before(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.01)


@mutant(killed_by=("CONC-01", "CONC-10"))
class TurnsCancellationIntoAnError(_Training):
    """A cancellation becomes an error of its own."""

    async def _between(self) -> None:
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            raise TrainingError("the training was interrupted") from None


@mutant(killed_by=("CONC-01",), timeout_s=20)
class WaitsForItsWorkWhenCancelled(_Training):
    """A cancellation is heeded only when work that takes long has ended."""

    async def _between(self) -> None:
        try:
            await asyncio.sleep(0.01)
        finally:
            if asyncio.current_task().cancelling():  # type: ignore[union-attr]
                await asyncio.sleep(7.0)


@mutant(killed_by=("CONC-02",))
class CommitsInTheBackground(ReferenceBackend):
    """The checkpoint is made by a task that goes on when the train is cancelled."""

    async def _train_model(
        self, model: Any, trajectory_groups: Any, config: Any, *args: Any, **kwargs: Any
    ) -> AsyncIterator[dict[str, float]]:
        async def commit() -> None:
            await asyncio.sleep(0.1)
            await self._commit(model, self._target_step(config), 1.0)

        self._work = asyncio.create_task(commit())
        async for event in super()._train_model(model, trajectory_groups, config, *args, **kwargs):
            yield event
        await self._work


@mutant(killed_by=("CONC-04",))
class NeverClosesItsInnerStream(ReferenceBackend):
    """The stream of its trainer is kept, and stays open where the consumer stops."""

    async def _train_model(self, *args: Any, **kwargs: Any) -> AsyncIterator[dict[str, float]]:
        self._inner = super()._train_model(*args, **kwargs)
        async for event in self._inner:
            yield event


@mutant(killed_by=("CONC-04",))
class NeverAwaitsItsCleanUp(ReferenceBackend):
    """The clean-up is a coroutine that is called without `await`."""

    async def _train_model(self, *args: Any, **kwargs: Any) -> AsyncIterator[dict[str, float]]:
        try:
            async for event in super()._train_model(*args, **kwargs):
                yield event
        except GeneratorExit:
            self._clean_up()  # type: ignore[unused-coroutine]
            raise

    async def _clean_up(self) -> None:
        """Nothing."""


@mutant(killed_by=("CONC-15",))
class GoesOnWhereACancelledTrainStopped(ReferenceBackend):
    """The weights in memory are those of the last update, whether its train was ended well or not."""

    def __init__(self) -> None:
        super().__init__()
        self._unfinished = 0.0

    async def _train_model(self, *args: Any, **kwargs: Any) -> AsyncIterator[dict[str, float]]:
        async for event in super()._train_model(*args, **kwargs):
            self._unfinished += 1.0
            yield event
        self._unfinished = 0.0

    async def _commit(self, model: Any, step: int, weight: float) -> None:
        await super()._commit(model, step, weight + self._left_over())

    def _left_over(self) -> float:
        return max(0.0, self._unfinished - 2.0)  # a train of the reference has two updates


@mutant(killed_by=("CONC-17",))
class CommitsInAThreadOfItsOwn(ReferenceBackend):
    """The checkpoint is saved in a thread that a cancellation leaves behind at work."""

    async def _commit(self, model: AnyModel, step: int, weight: float) -> None:
        await asyncio.to_thread(checkpoints.save, self._directory(model), step, weight)
        await self._publish(model, step)
