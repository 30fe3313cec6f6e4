"""Trajectory and TrajectoryGroup: what a rollout returns and what a train call takes."""

from __future__ import annotations

import copy
import inspect
import time
import traceback
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias, cast, overload

import pydantic

from art.errors import InvalidTrajectoriesError
from art.gather_context import get_gather_context
from art.messages import is_choice, messages_for_prompt, normalise_item
from art.tasks import discard
from art.types import Messages, MessagesAndChoices, Tools  # noqa: TC001 - pydantic reads field types

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Generator, Iterable, Iterator

    from art.gather_context import GatherContext

# Upstream names the four scalar types; any JSON value is kept without loss.
MetadataValue: TypeAlias = Any


def _now() -> datetime:
    return datetime.now(UTC)


class PydanticException(pydantic.BaseModel):
    """An exception of a rollout, kept as text so that it can be stored and read back.

    Attributes:
        type: Qualified name of the exception's class.
        message: Its text.
        traceback: The formatted traceback, causes included.
    """

    type: str
    message: str
    traceback: str

    @classmethod
    def from_exception(cls, error: BaseException) -> PydanticException:
        """Keep an exception as text."""
        # The standard library renders an exception whose own __str__ raises, too.
        rendered = traceback.TracebackException.from_exception(error)
        return cls(
            type=str(type(error)), message=str(rendered), traceback="".join(rendered.format())
        )


class History(pydantic.BaseModel):
    """One conversation. A trajectory has one, and may have more (sub-agents, branches).

    Attributes:
        messages_and_choices: The turns: plain message dicts, and Choices for what the model generated.
        tools: The tools that were offered to the model.
    """

    messages_and_choices: MessagesAndChoices = pydantic.Field(default_factory=list)
    tools: Tools | None = None

    @pydantic.field_validator("messages_and_choices", mode="after")
    @classmethod
    def _normalise_items(cls, items: MessagesAndChoices) -> MessagesAndChoices:
        return _normalise_items(items)

    def messages(self) -> Messages:
        """Return the turns as message dicts; see `Trajectory.messages`."""
        return messages_for_prompt(self.messages_and_choices)


class Trajectory(pydantic.BaseModel):
    """One rollout: what was said, and how good it was.

    Attributes:
        messages_and_choices: The turns: plain message dicts, and Choices for what the model generated.
            Only Choices are trained on.
        tools: The tools that were offered to the model.
        additional_histories: Further conversations of the same rollout, trained with the same reward.
        reward: How good the rollout was. A rollout that could not be scored should raise instead.
        initial_policy_version: Step of the policy that generated the first turn, where known.
        final_policy_version: Step of the policy that generated the last turn, where known.
        metrics: Numbers to be averaged over the step, by name.
        auto_metrics: Numbers that tools around the rollout recorded, by name.
        metadata: Any JSON values that tell which rollout this was.
        logs: Free lines of text.
        start_time: When the object was made; used by `finish`, not stored.
    """

    messages_and_choices: MessagesAndChoices = pydantic.Field(default_factory=list)
    tools: Tools | None = None
    additional_histories: list[History] = pydantic.Field(default_factory=list)
    reward: float = 0.0
    initial_policy_version: int | None = None
    final_policy_version: int | None = None
    metrics: dict[str, float | int | bool] = pydantic.Field(default_factory=dict)
    auto_metrics: dict[str, float | int | bool] = pydantic.Field(default_factory=dict)
    metadata: dict[str, MetadataValue] = pydantic.Field(default_factory=dict)
    logs: list[str] = pydantic.Field(default_factory=list)
    start_time: datetime = pydantic.Field(default_factory=_now, exclude=True)

    @pydantic.field_validator("messages_and_choices", mode="after")
    @classmethod
    def _normalise_items(cls, items: MessagesAndChoices) -> MessagesAndChoices:
        return _normalise_items(items)

    def log(self, message: str) -> None:
        """Add a line of text to the trajectory's logs."""
        self.logs.append(message)

    def finish(self) -> Trajectory:
        """Record `metrics["duration"]`, the seconds since the object was made, and return the trajectory."""
        start = self.start_time if self.start_time.tzinfo else self.start_time.astimezone()
        self.metrics["duration"] = (_now() - start).total_seconds()
        return self

    @asynccontextmanager
    async def track_duration(self, metric_name: str) -> AsyncIterator[None]:
        """Add the seconds spent inside the block to `metrics["{metric_name}_duration"]`."""
        start_s = time.monotonic()
        try:
            yield
        finally:
            key = f"{metric_name}_duration"
            self.metrics[key] = self.metrics.get(key, 0.0) + time.monotonic() - start_s

    def messages(self) -> Messages:
        """Return the turns as message dicts, as a chat endpoint takes them (missing content is "")."""
        return messages_for_prompt(self.messages_and_choices)

    def for_logging(self) -> dict[str, Any]:
        """Return the trajectory as plain data, each message marked `trainable` or not."""
        messages: list[dict[str, Any]] = []
        for item in _normalise_items(self.messages_and_choices):
            if is_choice(item):
                messages.append({**item.message.to_dict(), "trainable": True})
            else:
                messages.append({**cast("dict[str, Any]", item), "trainable": False})
        return {
            "reward": self.reward,
            "initial_policy_version": self.initial_policy_version,
            "final_policy_version": self.final_policy_version,
            "metrics": self.metrics,
            "metadata": self.metadata,
            "messages": messages,
            "tools": self.tools,
            "logs": self.logs,
        }

    def __str__(self) -> str:
        return f"Trajectory(reward={self.reward}, metrics={self.metrics}, metadata={self.metadata})"


def _normalise_items(items: MessagesAndChoices) -> MessagesAndChoices:
    return [normalise_item(item, f"messages_and_choices[{i}]") for i, item in enumerate(items)]


class TrajectoryGroup(pydantic.BaseModel):
    """Rollouts of one scenario, compared with each other in training.

    Built from trajectories and exceptions, it is a group at once; built from awaitables, it is an awaitable
    of a group (see `art.gather_trajectory_groups`). `len` and iteration cover the trajectories only.

    Attributes:
        trajectories: The rollouts that finished.
        exceptions: The rollouts that did not, as text.
        metadata: Any JSON values that tell which scenario this was.
        metrics: Numbers of the group, averaged over groups as `group_metric_{name}`.
        logs: Free lines of text.
    """

    trajectories: list[Trajectory]
    exceptions: list[PydanticException] = pydantic.Field(default_factory=list)
    metadata: dict[str, MetadataValue] = pydantic.Field(default_factory=dict)
    metrics: dict[str, float | int | bool] = pydantic.Field(default_factory=dict)
    logs: list[str] = pydantic.Field(default_factory=list)

    # The step of the policy that these rollouts were trained at, set by `backend.train`: a later
    # `model.log(groups, step=N+1)` then still credits their reward to policy N.
    _policy_step: int | None = None

    @overload
    def __new__(
        cls,
        trajectories: Iterable[Trajectory | BaseException],
        *,
        exceptions: Iterable[BaseException | PydanticException] = (),
        metadata: dict[str, MetadataValue] | None = None,
        metrics: dict[str, float | int | bool] | None = None,
        logs: list[str] | None = None,
    ) -> TrajectoryGroup: ...

    @overload
    def __new__(  # type: ignore[misc]  # returning another class is legal, and other checkers follow it
        cls,
        trajectories: Iterable[Awaitable[Trajectory]],
        *,
        exceptions: Iterable[BaseException | PydanticException] = (),
        metadata: dict[str, MetadataValue] | None = None,
        metrics: dict[str, float | int | bool] | None = None,
        logs: list[str] | None = None,
    ) -> PendingTrajectoryGroup: ...

    def __new__(  # type: ignore[misc]  # as above
        cls, trajectories: Iterable[Any] = (), **fields: Any
    ) -> TrajectoryGroup | PendingTrajectoryGroup:
        """Return a group, or an awaitable of one where the items are awaitables."""
        items = list(trajectories)
        pending = [inspect.isawaitable(item) for item in items]
        if any(pending):
            if not all(pending):
                for item in items:
                    discard(item)
                raise InvalidTrajectoriesError(
                    f"TrajectoryGroup item {pending.index(False)} is no awaitable but others are; "
                    "pass finished trajectories or awaitables, not both"
                )
            return PendingTrajectoryGroup(items, fields)
        group = super().__new__(cls)
        if not isinstance(trajectories, (list, tuple)):
            # An iterator is spent by now, and Python calls __init__ next with the same object.
            group.__init__(items, **fields)  # type: ignore[misc]
        return group

    def __init__(
        self,
        trajectories: Iterable[Any] = (),
        *,
        exceptions: Iterable[BaseException | PydanticException] = (),
        metadata: dict[str, MetadataValue] | None = None,
        metrics: dict[str, float | int | bool] | None = None,
        logs: list[str] | None = None,
    ) -> None:
        if "trajectories" in self.__dict__ and not isinstance(trajectories, (list, tuple)):
            return  # already built by __new__ from a one-shot iterator
        finished, failed = _split_items(trajectories)
        super().__init__(
            trajectories=finished,
            exceptions=[*failed, *map(_as_stored_exception, exceptions)],
            metadata=metadata if metadata is not None else {},
            metrics=metrics if metrics is not None else {},
            logs=logs if logs is not None else [],
        )

    def log(self, message: str) -> None:
        """Add a line of text to the group's logs."""
        self.logs.append(message)

    def __iter__(self) -> Iterator[Trajectory]:  # type: ignore[override]
        return iter(self.trajectories)

    def __len__(self) -> int:
        return len(self.trajectories)

    def __await__(self) -> Generator[Any, None, TrajectoryGroup]:
        """Return the group itself: what is finished may be awaited and gathered like what is not."""
        return self
        yield  # makes this a generator, as the await protocol wants

    def __copy__(self) -> TrajectoryGroup:
        return self._rebuilt(copy.copy)

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> TrajectoryGroup:
        return self._rebuilt(lambda value: copy.deepcopy(value, memo))

    def _rebuilt(self, duplicate: Any) -> TrajectoryGroup:
        group = type(self)(
            duplicate(self.trajectories),
            exceptions=duplicate(self.exceptions),
            metadata=duplicate(self.metadata),
            metrics=duplicate(self.metrics),
            logs=duplicate(self.logs),
        )
        group._policy_step = self._policy_step
        return group


class PendingTrajectoryGroup:
    """An awaitable of a TrajectoryGroup whose rollouts are still to run.

    All rollouts run at once. One that raises never cancels its siblings: its exception is kept in the group,
    unless more failed than the surrounding gather allows, in which case the first one is raised after the
    siblings have ended.
    """

    def __init__(self, rollouts: list[Awaitable[Trajectory]], fields: dict[str, Any]) -> None:
        self._rollouts = rollouts
        self._fields = fields
        self._num_trajectories = len(rollouts)  # read by progress bars, upstream's too

    def __await__(self) -> Generator[Any, None, TrajectoryGroup]:
        return self._run().__await__()

    async def _run(self) -> TrajectoryGroup:
        context = get_gather_context()
        context.expect(self._num_trajectories)
        group = await self.run_in(context)
        context.raise_if_too_many()
        return group

    async def run_in(self, context: GatherContext) -> TrajectoryGroup:
        """Run the rollouts in a gather that has counted them; the gather decides whether too many failed."""
        return TrajectoryGroup(await context.run_rollouts(self._rollouts), **self._fields)

    def close(self) -> None:
        """Give up the rollouts that were not started."""
        for rollout in self._rollouts:
            discard(rollout)


def _split_items(items: Iterable[Any]) -> tuple[list[Trajectory], list[PydanticException]]:
    finished: list[Trajectory] = []
    failed: list[PydanticException] = []
    for i, item in enumerate(items):
        if isinstance(item, Trajectory):
            finished.append(item)
        elif isinstance(item, (BaseException, PydanticException)):
            failed.append(_as_stored_exception(item))
        elif isinstance(item, dict):
            finished.append(Trajectory.model_validate(item))
        else:
            raise InvalidTrajectoriesError(
                f"TrajectoryGroup item {i} is a {type(item).__name__}; expected a Trajectory, an exception, "
                "or (for all of them) an awaitable of a Trajectory"
            )
    return finished, failed


def _as_stored_exception(
    error: BaseException | PydanticException | dict[str, str],
) -> PydanticException:
    if isinstance(error, PydanticException):
        return error
    if isinstance(error, BaseException):
        return PydanticException.from_exception(error)
    return PydanticException.model_validate(error)
