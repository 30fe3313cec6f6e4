"""A backend without a GPU, for tests and as the reference for adapter authors."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from art.adapter_kit.advantages import is_trainable
from art.errors import ConfigurationError
from art.training import BackendTrainMixin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from art import dev
    from art.backend import AnyModel, AnyTrainableModel
    from art.trajectories import TrajectoryGroup
    from art.types import TrainConfig

Capability: TypeAlias = Literal["step", "listing", "inference", "inference_name", "close"]


@dataclass(frozen=True)
class TrainCall:
    """One train call as it reached the backend: copies, so that later changes do not show.

    Attributes:
        groups: The groups.
        config: The config with its final learning rate and target step.
        dev_config: The further options.
    """

    groups: list[TrajectoryGroup]
    config: TrainConfig
    dev_config: dev.TrainConfig


@dataclass
class InMemoryBackend(BackendTrainMixin):
    """Keeps checkpoints as numbers in a dict, and remembers what it was asked.

    Attributes:
        events: What a train call yields where it has something to train on: dicts. Or a function of the call
            that returns them, whatever there is to train on.
        raises: Raised by the next train calls, after their events and before the commit; None for none.
        checkpoints: The committed steps by (project, name); step 0 exists from the start.
        calls: Every train call, oldest first.
        endpoint: (base_url, api_key) that the capability "inference" gives.
    """

    events: Iterable[dict[str, float]] | Callable[[TrainCall], Iterable[dict[str, float]]] = (
        {"loss": 0.5, "grad_norm": 1.0},
    )
    raises: BaseException | None = None
    checkpoints: dict[tuple[str, str], set[int]] = field(default_factory=dict)
    calls: list[TrainCall] = field(default_factory=list)
    endpoint: tuple[str, str] = ("http://127.0.0.1:9/v1", "in-memory")

    async def _train_model(
        self,
        model: AnyTrainableModel,
        trajectory_groups: list[TrajectoryGroup],
        config: TrainConfig,
        dev_config: dev.TrainConfig,
        verbose: bool = False,  # noqa: ARG002 - part of the protocol
    ) -> AsyncIterator[dict[str, float]]:
        call = TrainCall(
            copy.deepcopy(trajectory_groups), config.model_copy(), copy.deepcopy(dev_config)
        )
        self.calls.append(call)
        for event in self._events_of(call):
            await asyncio.sleep(0)  # a real backend waits here; cancellation arrives
            yield event
        if self.raises is not None:
            raise self.raises
        if config.target_step is None:
            raise ConfigurationError("config.target_step is not set; the frontend sets it")
        self._steps(model).add(config.target_step)

    def _events_of(self, call: TrainCall) -> Iterable[dict[str, float]]:
        if callable(self.events):
            return self.events(call)
        return self.events if any(map(is_trainable, call.groups)) else ()  # T6

    async def _delete_checkpoint_files(
        self, model: AnyTrainableModel, steps_to_keep: list[int]
    ) -> None:
        if not steps_to_keep:
            raise ConfigurationError(
                "steps_to_keep is empty; at least the latest step must stay (D2)"
            )
        self._steps(model).intersection_update(steps_to_keep)

    def _steps(self, model: AnyModel) -> set[int]:
        return self.checkpoints.setdefault((model.project, model.name), {0})

    @classmethod
    def supporting(cls, *capabilities: Capability) -> InMemoryBackend:
        """Return a backend with these optional capabilities switched on.

        A capability is present or absent as a method, so each combination is a class of its own.
        """
        unknown = set(capabilities) - set(_MIXINS)
        if unknown:
            raise ConfigurationError(
                f"unknown capability {min(unknown)!r}; there are {', '.join(_MIXINS)}"
            )
        bases = tuple(_MIXINS[name] for name in sorted(set(capabilities)))
        combined: type[InMemoryBackend] = type("InMemoryBackend", (*bases, cls), {})
        return combined()


class _Step(InMemoryBackend):
    async def _get_step(self, model: AnyTrainableModel) -> int:
        return max(self._steps(model))


class _Listing(InMemoryBackend):
    async def _list_checkpoint_steps(self, model: AnyTrainableModel) -> list[int]:
        return sorted(self._steps(model))


class _Inference(InMemoryBackend):
    async def _prepare_backend_for_training(
        self,
        model: AnyTrainableModel,  # noqa: ARG002 - part of the protocol
        config: dev.OpenAIServerConfig | None,  # noqa: ARG002 - part of the protocol
    ) -> tuple[str, str]:
        return self.endpoint


class _InferenceName(InMemoryBackend):
    def _model_inference_name(self, model: AnyModel, step: int | None = None) -> str:
        return model.name if step is None else f"{model.name}@{step}"


class _Close(InMemoryBackend):
    closed: bool = False

    async def close(self) -> None:
        self.closed = True


_MIXINS: dict[str, type[InMemoryBackend]] = {
    "step": _Step,
    "listing": _Listing,
    "inference": _Inference,
    "inference_name": _InferenceName,
    "close": _Close,
}
