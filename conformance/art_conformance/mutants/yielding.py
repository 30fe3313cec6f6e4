"""Mutants of the stream: events that are odd, missing or late, and batches that are not borne."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from art_conformance.mutants import mutant
from art_conformance.reference import ReferenceBackend

if TYPE_CHECKING:
    from collections.abc import Callable

    import art


@mutant(killed_by=("YIELD-01",))
class YieldsNothing(ReferenceBackend):
    """It trains, and tells nothing about it."""

    async def _train_model(self, *args: Any, **kwargs: Any) -> AsyncIterator[dict[str, float]]:
        nothing: list[dict[str, float]] = []
        async for _ in super()._train_model(*args, **kwargs):
            pass
        for event in nothing:
            yield event


@mutant(killed_by=("YIELD-01",))
class YieldsPairs(ReferenceBackend):
    """Events are lists of pairs."""

    def _event(self, change: float, num_steps: int) -> dict[str, float]:
        return list(super()._event(change, num_steps).items())  # type: ignore[return-value]


@mutant(killed_by=("YIELD-01",))
class NumbersItsMetrics(ReferenceBackend):
    """Names of metrics are numbers."""

    def _event(self, change: float, num_steps: int) -> dict[str, float]:
        return dict(enumerate(super()._event(change, num_steps).values()))  # type: ignore[arg-type]


@mutant(killed_by=("YIELD-02", "LOG-11"))
class PrefixesNames(ReferenceBackend):
    """Names have the split before them, as in the history."""

    def _event(self, change: float, num_steps: int) -> dict[str, float]:
        return {f"train/{k}": v for k, v in super()._event(change, num_steps).items()}


@mutant(killed_by=("YIELD-02",))
class SendsItsLearningRate(ReferenceBackend):
    """It sends metrics under names that are the frontend's."""

    def _event(self, change: float, num_steps: int) -> dict[str, float]:
        return super()._event(change, num_steps) | {"learning_rate": 1e-4, "step": 1.0}


def _sends(value: Any) -> type[ReferenceBackend]:
    class Sends(ReferenceBackend):
        def _event(self, change: float, num_steps: int) -> dict[str, float]:
            return super()._event(change, num_steps) | {"kl": value}

    return Sends


@mutant(killed_by=("YIELD-03",))
class SendsNaN(_sends(float("nan"))):  # type: ignore[misc]
    """A value is not a number."""


@mutant(killed_by=("YIELD-03",))
class SendsInfinity(_sends(float("inf"))):  # type: ignore[misc]
    """A value is infinite."""


@mutant(killed_by=("YIELD-03",))
class SendsText(_sends("0.5")):  # type: ignore[misc]
    """A value is text."""


@mutant(killed_by=("YIELD-03",))
class SendsNone(_sends(None)):  # type: ignore[misc]
    """A value is None."""


@mutant(killed_by=("YIELD-03",))
class SendsAFlag(_sends(True)):  # type: ignore[misc]
    """A value is a bool."""


@mutant(killed_by=("YIELD-03",))
class SendsAHugeInt(_sends(10**400)):  # type: ignore[misc]
    """A value is an int that is too large for a float."""


@mutant(killed_by=("YIELD-04",))
class CountsMicroBatches(ReferenceBackend):
    """`num_gradient_steps` counts something smaller than gradient steps."""

    def _event(self, change: float, num_steps: int) -> dict[str, float]:
        return super()._event(change, 2 * num_steps)


@mutant(killed_by=("YIELD-05", "STEP-05"))
class TrainsOnEqualRewards(ReferenceBackend):
    """Groups without a signal are trained like others."""

    def _trainable(self, groups: list[art.TrajectoryGroup]) -> list[art.TrajectoryGroup]:
        return [group for group in groups if group.trajectories]


@mutant(killed_by=("YIELD-05", "STEP-02"))
class RefusesToTrainOnNothing(ReferenceBackend):
    """A batch without a signal is an error."""

    def _trainable(self, groups: list[art.TrajectoryGroup]) -> list[art.TrajectoryGroup]:
        trainable = super()._trainable(groups)
        if not trainable:
            raise ValueError("nothing to train on")
        return trainable


@mutant(killed_by=("YIELD-06",))
class FailsOnEmptyGroups(ReferenceBackend):
    """The largest reward of an empty group is asked for."""

    def _trainable(self, groups: list[art.TrajectoryGroup]) -> list[art.TrajectoryGroup]:
        rewards = [[t.reward for t in group.trajectories] for group in groups]
        return [g for g, r in zip(groups, rewards, strict=True) if max(r) > min(r)]


@mutant(killed_by=("YIELD-06",))
class DropsGroupsWithExceptions(ReferenceBackend):
    """A group in which one rollout failed is not trained at all."""

    def _trainable(self, groups: list[art.TrajectoryGroup]) -> list[art.TrajectoryGroup]:
        return [group for group in super()._trainable(groups) if not group.exceptions]


@mutant(killed_by=("YIELD-07",))
class ReusesOneDict(ReferenceBackend):
    """One dict is filled again for each event."""

    def __init__(self) -> None:
        super().__init__()
        self._shared: dict[str, float] = {}

    def _event(self, change: float, num_steps: int) -> dict[str, float]:
        self._shared.update(super()._event(change, num_steps))
        return self._shared


@mutant(killed_by=("YIELD-07",))
class TakesAnEventApart(ReferenceBackend):
    """An event that was sent loses a name afterwards."""

    async def _train_model(self, *args: Any, **kwargs: Any) -> AsyncIterator[dict[str, float]]:
        async for event in super()._train_model(*args, **kwargs):
            yield event
            event.pop("num_gradient_steps")


@mutant(killed_by=("YIELD-08",))
class CollectsItsEvents(ReferenceBackend):
    """Events are sent when all is done."""

    async def _train_model(self, *args: Any, **kwargs: Any) -> AsyncIterator[dict[str, float]]:
        for event in [e async for e in super()._train_model(*args, **kwargs)]:
            yield event


@mutant(killed_by=("YIELD-09",))
class DropsForSlowConsumers(ReferenceBackend):
    """An event that comes while the consumer is busy with the one before is lost."""

    async def _train_model(self, *args: Any, **kwargs: Any) -> AsyncIterator[dict[str, float]]:
        was_busy = threading.Event()
        async for event in super()._train_model(*args, **kwargs):
            if was_busy.is_set():
                was_busy.clear()
                continue
            passed = asyncio.get_running_loop().call_soon(was_busy.set)
            yield event
            passed.cancel()


@mutant(killed_by=("YIELD-10",))
class StartsOver(ReferenceBackend):
    """The iterator starts over when it is asked after its end."""

    def _train_model(self, *args: Any, **kwargs: Any) -> AsyncIterator[dict[str, float]]:
        return _EndlessIterator(lambda: ReferenceBackend._train_model(self, *args, **kwargs))


class _EndlessIterator(AsyncIterator[dict[str, float]]):
    def __init__(self, start: Callable[[], AsyncIterator[dict[str, float]]]) -> None:
        self._start = start
        self._stream = start()

    async def __anext__(self) -> dict[str, float]:
        try:
            return await anext(self._stream)
        except StopAsyncIteration:
            self._stream = self._start()
            raise


@mutant(killed_by=("YIELD-11",))
class SaysMoreWhenVerbose(ReferenceBackend):
    """With `verbose` it sends one event more."""

    async def _train_model(
        self, model: Any, groups: Any, config: Any, dev_config: Any, verbose: bool = False
    ) -> AsyncIterator[dict[str, float]]:
        if verbose:
            yield {"num_groups": float(len(groups))}
        async for event in super()._train_model(model, groups, config, dev_config, verbose):
            yield event
