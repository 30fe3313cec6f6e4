"""Stands between the frontend and a backend: writes down what passes, and breaks it where a check asks for that."""

from __future__ import annotations

import copy
import inspect
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from art.backend import Capabilities
from art_conformance.adapter import CAPABILITIES

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from art import TrainConfig, TrajectoryGroup
    from art.backend import AnyTrainableModel

    Stream: TypeAlias = AsyncIterator[Any]


@dataclass
class RecordedTrain:
    """One call of `_train_model`.

    Attributes:
        groups: What the frontend passed, the very objects.
        config: A copy of the config.
        dev_config: A copy of the further options.
        events: What the backend yielded, the very objects.
        copies: A shallow copy of each event, taken when it came; None for one that is no mapping.
        times: When each event came, by the monotonic clock.
        ended: Whether the backend's stream came to a clean end.
    """

    groups: list[TrajectoryGroup]
    config: TrainConfig
    dev_config: dict[str, Any]
    events: list[Any] = field(default_factory=list)
    copies: list[dict[str, Any] | None] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    ended: bool = False


class Recorder:
    """What the frontend is registered with instead of the backend. It has the same methods, and no more.

    Attributes:
        trains: Every train call, oldest first.
        deletions: The `steps_to_keep` of every deletion.
        calls: The name of every method that was called, in order.
        interfere: Takes a backend's stream and returns the one that the frontend sees: where a fault is injected.
    """

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.trains: list[RecordedTrain] = []
        self.deletions: list[list[int]] = []
        self.calls: list[str] = []
        self.interfere: Callable[[Stream], Stream] | None = None

    @property
    def last(self) -> RecordedTrain:
        """The newest train call."""
        return self.trains[-1]

    def _train_model(
        self,
        model: AnyTrainableModel,
        trajectory_groups: list[TrajectoryGroup],
        config: TrainConfig,
        dev_config: Any,
        verbose: bool = False,
    ) -> AsyncIterator[dict[str, float]]:
        self.calls.append("_train_model")
        record = RecordedTrain(
            trajectory_groups, config.model_copy(), copy.deepcopy(dict(dev_config))
        )
        self.trains.append(record)
        stream = self._backend._train_model(model, trajectory_groups, config, dev_config, verbose)
        if not isinstance(stream, AsyncIterator):
            return stream  # type: ignore[no-any-return]  # for the frontend to refuse
        recorded = _record(stream, record)
        return recorded if self.interfere is None else self.interfere(recorded)

    async def _delete_checkpoint_files(
        self, model: AnyTrainableModel, steps_to_keep: list[int]
    ) -> None:
        self.calls.append("_delete_checkpoint_files")
        self.deletions.append(list(steps_to_keep))
        await self._backend._delete_checkpoint_files(model, steps_to_keep)


def recording(backend: Any) -> Recorder:
    """Return a recorder with the optional capabilities that the backend has, under the name of its class."""
    present = Capabilities.of(backend)
    methods = {
        method: _relaying(method, getattr(backend, method))
        for capability, method in METHODS.items()
        if getattr(present, capability) is not None
    }
    recorder: Recorder = type(type(backend).__name__, (Recorder,), methods)(backend)
    return recorder


METHODS: dict[str, str] = dict(
    zip(
        CAPABILITIES,
        (
            "_get_step",
            "_list_checkpoint_steps",
            "_prepare_backend_for_training",
            "_model_inference_name",
            "_inference_failure",
            "_default_base_path",
            "register",
            "close",
            "_train_sft",
        ),
        strict=True,
    )
)
"""The method of each optional capability, by its name in `art.backend.Capabilities`."""


def two_methods_of(recorder: Recorder) -> Any:
    """Return an object that shows nothing of a backend but the two methods."""
    methods = {
        "_train_model": staticmethod(recorder._train_model),
        "_delete_checkpoint_files": staticmethod(recorder._delete_checkpoint_files),
    }
    return type("TwoMethods", (), methods)()


def _relaying(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def relay(self: Recorder, *args: Any, **kwargs: Any) -> Any:
        self.calls.append(name)
        return method(*args, **kwargs)

    async def relay_async(self: Recorder, *args: Any, **kwargs: Any) -> Any:
        return await relay(self, *args, **kwargs)

    return relay_async if inspect.iscoroutinefunction(method) else relay


async def _record(stream: Stream, record: RecordedTrain) -> AsyncIterator[Any]:
    async with _closing(stream):
        async for event in stream:
            record.times.append(time.monotonic())
            record.events.append(event)
            record.copies.append(dict(event) if isinstance(event, Mapping) else None)
            yield event
    record.ended = True


def _closing(stream: Any) -> AbstractAsyncContextManager[Any]:
    @asynccontextmanager
    async def nothing_to_close() -> AsyncIterator[None]:
        yield

    return aclosing(stream) if hasattr(stream, "aclose") else nothing_to_close()
