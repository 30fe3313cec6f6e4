"""Mutants that have a mind of their own about the learning rate, or drop options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from art_conformance.mutants import mutant
from art_conformance.reference import ReferenceBackend

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import art


class _OwnRate(ReferenceBackend):
    def __init__(self) -> None:
        super().__init__()
        self._num_calls = 0
        self._first: float | None = None

    async def _train_model(
        self, model: Any, groups: Any, config: art.TrainConfig, *rest: Any
    ) -> AsyncIterator[dict[str, float]]:
        changed = config.model_copy(update={"learning_rate": self._rate(config, groups)})
        self._num_calls += 1
        async for event in super()._train_model(model, groups, changed, *rest):
            yield event

    def _rate(self, config: art.TrainConfig, groups: list[art.TrajectoryGroup]) -> float:
        raise NotImplementedError


@mutant(killed_by=("LR-03", "LR-06"))
class HardCodesTheRate(_OwnRate):
    """It trains with a rate that its author found good."""

    def _rate(self, config: art.TrainConfig, groups: list[art.TrajectoryGroup]) -> float:  # noqa: ARG002
        return 5e-6


@mutant(killed_by=("LR-03",))
class ScalesTheRateAgain(_OwnRate):
    """It scales the rate by the spread of the rewards, which the frontend has done."""

    def _rate(self, config: art.TrainConfig, groups: list[art.TrajectoryGroup]) -> float:
        rewards = [t.reward for group in groups for t in group]
        return config.learning_rate * (0.5 + max(rewards) - min(rewards))


@mutant(killed_by=("LR-04",))
class DecaysTheRate(_OwnRate):
    """It has a schedule of its own: the rate falls from call to call."""

    def _rate(self, config: art.TrainConfig, groups: list[art.TrajectoryGroup]) -> float:  # noqa: ARG002
        return config.learning_rate / (1 + 0.1 * self._num_calls)


@mutant(killed_by=("LR-04",))
class KeepsTheFirstRate(_OwnRate):
    """The optimizer is made at the first call and keeps the rate of that time."""

    def _rate(self, config: art.TrainConfig, groups: list[art.TrajectoryGroup]) -> float:  # noqa: ARG002
        if self._first is None:
            self._first = config.learning_rate
        return self._first


@mutant(killed_by=("LR-05",))
class IgnoresOptions(ReferenceBackend):
    """Train options that it does not know are dropped without a word."""

    def _check_options(self, dev_config: Any) -> None:
        pass


@mutant(killed_by=("LR-05",))
class RefusesOptionsTooLate(ReferenceBackend):
    """An unknown option is refused when the training is done."""

    def _check_options(self, dev_config: Any) -> None:
        pass

    async def _train_model(
        self, model: Any, groups: Any, config: Any, dev_config: Any, verbose: bool = False
    ) -> AsyncIterator[dict[str, float]]:
        async for event in super()._train_model(model, groups, config, dev_config, verbose):
            yield event
        super()._check_options(dev_config)


@mutant(killed_by=("LR-06",))
class NeverStandsStill(ReferenceBackend):
    """A rate below a smallest one is raised to it."""

    def _update(self, group: art.TrajectoryGroup, learning_rate: float) -> float:
        return super()._update(group, max(learning_rate, 1e-8))
