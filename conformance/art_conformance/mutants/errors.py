"""Mutants that fail badly: quietly, halfway, or telling too much."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from art.errors import ConfigurationError, TrainingError
from art_conformance.mutants import mutant
from art_conformance.reference import ReferenceBackend, checkpoints

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import art
    from art_conformance.adapter import Fault

logger = logging.getLogger(__name__)


@mutant(killed_by=("ERR-04", "ERR-05", "ERR-06"))
class EndsQuietly(ReferenceBackend):
    """It logs its own failure, and ends the stream as if all was well."""

    async def _train_model(self, *args: Any) -> AsyncIterator[dict[str, float]]:
        try:
            async for event in super()._train_model(*args):
                yield event
        except TrainingError as error:
            logger.warning("training failed: %s", error)


@mutant(killed_by=("ERR-04", "ERR-05", "ERR-06", "ERR-11", "CONC-02"))
class SavesInAnyCase(ReferenceBackend):
    """The checkpoint is saved in a `finally`, also when the train breaks or is cancelled."""

    async def _train_model(self, *args: Any) -> AsyncIterator[dict[str, float]]:
        try:
            async for event in super()._train_model(*args):
                yield event
        finally:
            checkpoints.save(self._directory(args[0]), self._target_step(args[2]), 1.0)


@mutant(killed_by=("ERR-06",))
class FailsAfterTheCommit(ReferenceBackend):
    """What fails while a checkpoint is saved is told after it was put in its place."""

    def _fail(self, fault: Fault) -> None:
        if fault != "train_commit":
            super()._fail(fault)

    async def _commit(self, model: Any, step: int, weight: float) -> None:
        await super()._commit(model, step, weight)
        super()._fail("train_commit")


@mutant(killed_by=("ERR-01", "ERR-02"))
class YieldsWhileItIsClosed(ReferenceBackend):
    """A stream that is closed yields one more event: its totals so far."""

    async def _train_model(self, *args: Any) -> AsyncIterator[dict[str, float]]:
        try:
            async for event in super()._train_model(*args):
                yield event
        except GeneratorExit:
            yield {"loss": 0.0}


@mutant(killed_by=("ERR-02", "CONC-03"))
class StaysBusy(ReferenceBackend):
    """A train that breaks leaves it busy for good."""

    _is_busy = False

    async def _train_model(self, *args: Any) -> AsyncIterator[dict[str, float]]:
        if self._is_busy:
            raise TrainingError("another training is in progress")
        self._is_busy = True
        async for event in super()._train_model(*args):
            yield event
        self._is_busy = False


@mutant(killed_by=("ERR-03",), declines={"step": "it cannot tell"})
class RefusesAStepThatExists(ReferenceBackend):
    """A target step that exists is refused, and it cannot tell its step either."""

    _get_step = None  # type: ignore[assignment]

    async def _commit(self, model: Any, step: int, weight: float) -> None:
        if step in checkpoints.steps(self._directory(model)):
            raise TrainingError(f"checkpoint {step} exists")
        await super()._commit(model, step, weight)


@mutant(killed_by=("ERR-07",))
class QuotesTheRequest(ReferenceBackend):
    """The message of an error quotes the request with its headers."""

    def _check_options(self, dev_config: Any) -> None:
        if dev_config:
            keys = [endpoint.api_key for endpoint in self._endpoints.values()]
            raise ConfigurationError(f"400 for {dev_config}, headers: authorization: Bearer {keys}")


@mutant(killed_by=("ERR-07",))
class LogsPrompts(ReferenceBackend):
    """It logs what it trains on."""

    def _update(self, group: art.TrajectoryGroup, learning_rate: float) -> float:
        logger.info("training on %s", group.trajectories[0].messages())
        return super()._update(group, learning_rate)


@mutant(killed_by=("ERR-10",))
class QuotesThePrompts(ReferenceBackend):
    """The message of a failure quotes the batch."""

    async def _train_model(self, *args: Any) -> AsyncIterator[dict[str, float]]:
        try:
            async for event in super()._train_model(*args):
                yield event
        except TrainingError as error:
            raise TrainingError(f"{error}: {args[1][0].trajectories[0].messages()}") from None


class _Stopped(BaseException):
    pass


@mutant(killed_by=("ERR-08",))
class StopsTheProgram(ReferenceBackend):
    """A failure is raised as a BaseException, which no `except Exception` catches."""

    def _fail(self, fault: Fault) -> None:
        try:
            super()._fail(fault)
        except TrainingError as error:
            raise _Stopped(str(error)) from None


@mutant(killed_by=("ERR-08",))
class FailsWithoutAWord(ReferenceBackend):
    """A failure is raised without a message."""

    def _fail(self, fault: Fault) -> None:
        try:
            super()._fail(fault)
        except TrainingError:
            raise TrainingError from None


@mutant(killed_by=("ERR-12",))
class CannotFineTune(ReferenceBackend):
    """Fine-tuning is there by name only."""

    async def _train_sft(self, model: Any, *args: Any) -> AsyncIterator[dict[str, float]]:
        raise NotImplementedError(f"no fine-tuning of {model.name} yet, on {len(args)} arguments")
        yield {}


@mutant(killed_by=("ERR-13",))
class KeepsHalfATrain(ReferenceBackend):
    """What a failed train has changed stays in memory, and goes into the next checkpoint."""

    _pending = 0.0

    def _update(self, group: art.TrajectoryGroup, learning_rate: float) -> float:
        change = super()._update(group, learning_rate)
        self._pending += change
        return change

    async def _commit(self, model: Any, step: int, weight: float) -> None:
        del weight
        start = checkpoints.load(self._directory(model), step - 1)
        await super()._commit(model, step, start + self._pending)
        self._pending = 0.0
