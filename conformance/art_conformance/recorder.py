"""Stands between the frontend and a backend: writes down what passes, and breaks it where a check asks for that."""

from __future__ import annotations

import copy
import inspect
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from art.backend import Capabilities

if TYPE_CHECKING:
    from collections.abc import Collection
    from contextlib import AbstractAsyncContextManager

    from art import TrainConfig, TrajectoryGroup
    from art.backend import AnyTrainableModel

    Stream: TypeAlias = AsyncIterator[Any]

METHODS = {
    "step": "_get_step",
    "listing": "_list_checkpoint_steps",
    "inference": "_prepare_backend_for_training",
    "inference_name": "_model_inference_name",
    "inference_health": "_inference_failure",
    "default_base_path": "_default_base_path",
    "register": "register",
    "close": "close",
    "sft": "_train_sft",
}
"""The method of each optional capability, by its name in `art.backend.Capabilities`."""


@dataclass
class RecordedTrain:
    """One call of `_train_model`.

    Attributes:
        groups: What the frontend passed, the very objects.
        config: A copy of the config.
        dev_config: A copy of the further options.
        events: What the backend yielded, the very objects.
        copies: A shallow copy of each event, taken when it came; None for one that is no mapping.
        ended: Whether the backend's stream came to a clean end.
    """

    groups: list[TrajectoryGroup]
    config: TrainConfig
    dev_config: dict[str, Any]
    events: list[Any] = field(default_factory=list)
    copies: list[dict[str, Any] | None] = field(default_factory=list)
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


def recording(backend: Any, *, hidden: Collection[str] = ()) -> Recorder:
    """Return a recorder with the backend's optional capabilities, less the hidden ones, and its class's name."""
    present = Capabilities.of(backend)
    methods = {
        method: _relaying(method, getattr(backend, method))
        for capability, method in METHODS.items()
        if getattr(present, capability) is not None and capability not in hidden
    }
    recorder: Recorder = type(type(backend).__name__, (Recorder,), methods)(backend)
    return recorder


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
            record.events.append(event)
            record.copies.append(dict(event) if isinstance(event, Mapping) else None)
            yield event
    record.ended = True


def _closing(stream: Any) -> AbstractAsyncContextManager[Any]:
    @asynccontextmanager
    async def nothing_to_close() -> AsyncIterator[None]:
        yield

    return aclosing(stream) if hasattr(stream, "aclose") else nothing_to_close()
