"""A backend's streams in the hands of a check: changed on their way to the frontend, or asked for past it."""

from __future__ import annotations

import inspect
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Any

import art

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator

    from art_conformance.recorder import Stream
    from art_conformance.run import Run


@contextmanager
def interfering(run: Run, change: Callable[[Stream], Stream]) -> Iterator[None]:
    """Let the frontend see `change(stream)` instead of the backend's stream."""
    run.recorder.interfere = change
    try:
        yield
    finally:
        run.recorder.interfere = None


def replaced_by(events: Iterable[Any]) -> Callable[[Stream], Stream]:
    """Return a change: the backend's stream runs to its end unseen, then come these events."""

    async def changed(stream: Any) -> AsyncIterator[Any]:
        async with aclosing(stream):
            async for _ in stream:
                pass
        for event in events:
            yield event

    return changed


def call_train(
    run: Run, target_step: int, groups: list[art.TrajectoryGroup], learning_rate: float = 1e-4
) -> Any:
    """Call the backend's `_train_model` as the frontend does, past the frontend, and return what comes."""
    config = art.TrainConfig(learning_rate=learning_rate, target_step=target_step)
    return run.backend._train_model(run.model, groups, config, {}, False)


async def train_past_the_frontend(
    run: Run,
    target_step: int,
    groups: list[art.TrajectoryGroup] | None = None,
    learning_rate: float = 1e-4,
) -> None:
    """Let the backend train to the stream's end; the books hear nothing of it.

    Args:
        run: The run.
        target_step: The checkpoint to make.
        groups: A batch; the run's usual one where none is given.
        learning_rate: The rate.
    """
    batch = await run.groups() if groups is None else groups
    async for _ in call_train(run, target_step, batch, learning_rate):
        pass


async def weights_of_a_train(run: Run, target_step: int) -> object:
    """Train a checkpoint past the frontend, on the same batch each time, and return a digest of its weights."""
    await train_past_the_frontend(run, target_step)
    return await run.weights(target_step)


async def put_away(run: Run, stream: Any) -> None:
    """Close what a call returned that is not looked at further. What cannot be closed is run to its end."""
    if inspect.iscoroutine(stream):
        stream.close()
    elif hasattr(stream, "aclose"):
        await stream.aclose()
    elif hasattr(stream, "__anext__"):
        async for _ in stream:
            pass
        await run.settle()
