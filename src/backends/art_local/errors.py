"""What goes wrong in a child process, as the errors of `art`: the one place where they are mapped."""

from __future__ import annotations

from typing import Any

from art.errors import (
    ArtError,
    BackendError,
    ConfigurationError,
    TrainingError,
    UntrainableTrajectoryError,
)

_BY_NAME: dict[str, type[ArtError]] = {
    error.__name__: error
    for error in (ConfigurationError, TrainingError, UntrainableTrajectoryError)
}


def error_from_event(event: dict[str, Any], tail: str, default: type[BackendError]) -> ArtError:
    """Return the error that a child's `failed` or `error` event tells of.

    Args:
        event: The event, with `message` and, from the worker, `error` (a class name) and `traceback`.
        tail: The last lines of the child's log, added where the event has no traceback.
        default: The class where the event names none of ours.
    """
    name = event.get("error", "")
    kind = _BY_NAME.get(name, default)
    message = str(event.get("message", "no message"))
    if issubclass(kind, BackendError):
        message = f"{name}: {message}" if name and name != kind.__name__ else message
        details = event.get("traceback") or tail
        message = f"{message}\n{details}" if details else message
    return kind(message)
