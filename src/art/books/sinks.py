"""Metric sinks: where rows go besides the history on disk."""

from __future__ import annotations

import inspect
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from art.books.sink_dispatcher import SinkDispatcher
from art.books.wandb_sink import WandbSink
from art.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["Sink", "SinkContext", "SinkDispatcher", "WandbSink", "resolve_sinks", "wandb_run"]

_ENTRY_POINT_GROUP = "art.sinks"
_WANDB_START_S = 30.0


@dataclass(frozen=True)
class SinkContext:
    """Whose metrics a sink receives.

    Attributes:
        project: The model's project.
        name: The model's name.
        directory: The model's directory on disk.
        config: The user's config of the model.
        entity: The user's account or team at the sink, where given.
    """

    project: str
    name: str
    directory: Path
    config: dict[str, Any] | None = None
    entity: str | None = None


@runtime_checkable
class Sink(Protocol):
    """A destination of metrics. All three methods are called from one thread, and may block and raise."""

    def open(self, context: SinkContext) -> None:
        """Start; called before the first row, and again after a failure or a close."""
        ...

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Take one row: finite numbers by `{split}/{metric}`. Steps come in any order and more than once."""
        ...

    def close(self) -> None:
        """Deliver what is left and stop."""
        ...


def resolve_sinks(report_metrics: Sequence[str | Sink] | None) -> list[Sink]:
    """Turn a model's `report_metrics` into sinks.

    Args:
        report_metrics: Names (entry points `art.sinks`) and Sink objects. None means wandb where WANDB_API_KEY
            is set or WANDB_MODE is offline. WANDB_MODE=disabled takes wandb out in any case.

    Raises:
        ConfigurationError: A name is unknown, a sink cannot be loaded, or an object is no sink.
    """
    mode = os.environ.get("WANDB_MODE")
    if report_metrics is None:
        report_metrics = ["wandb"] if os.environ.get("WANDB_API_KEY") or mode == "offline" else []
    if isinstance(report_metrics, str):
        raise ConfigurationError(
            f"report_metrics is the string {report_metrics!r}; pass a list, [{report_metrics!r}]"
        )
    sinks: list[Sink] = []
    for i, item in enumerate(report_metrics):
        if item in report_metrics[:i] or (item == "wandb" and mode == "disabled"):
            continue
        sink: object = _load(item) if isinstance(item, str) else item
        if not isinstance(sink, Sink) or isinstance(sink, type):
            raise ConfigurationError(
                f"report_metrics item {item!r} is no sink; it needs the methods open, log and close"
            )
        if any(map(inspect.iscoroutinefunction, (sink.open, sink.log, sink.close))):
            raise ConfigurationError(
                f"report_metrics item {item!r} has async methods; a sink is called from a thread of its own, so "
                "make them plain functions"
            )
        sinks.append(sink)
    return sinks


def wandb_run(dispatcher: SinkDispatcher) -> Any:
    """Return the wandb run that a dispatcher's rows go to, started if need be.

    None when wandb is off, or does not start within thirty seconds.
    """
    for sink in dispatcher.sinks:
        if isinstance(sink, WandbSink):
            dispatcher.open(_WANDB_START_S, only=sink)
            return sink.run
    return None


def _load(name: str) -> Sink:
    from importlib.metadata import entry_points

    points = {point.name: point for point in entry_points(group=_ENTRY_POINT_GROUP)}
    if name == "wandb" and name not in points:
        return WandbSink()  # a checkout on the path, not installed: there are no entry points
    if name not in points:
        known = ", ".join(sorted({*points, "wandb"}))
        raise ConfigurationError(
            f"report_metrics names an unknown sink {name!r}; known are: {known}"
        )
    try:
        return cast("Sink", points[name].load()())
    except Exception as error:
        # Whatever the package of a stranger raises while it loads, the user's setting is what to change.
        raise ConfigurationError(f"the sink {name!r} could not be loaded: {error!r}") from error
