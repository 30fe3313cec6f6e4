"""The state that one gather shares with the rollouts inside it: counts, running means, the progress bar."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import math
import numbers
import traceback
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from art.endpoints import inference_failure
from art.errors import ConfigurationError, InferenceError
from art.messages import is_choice
from art.tasks import discard, run_together, was_cancelled

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from tqdm import tqdm

    from art.trajectories import Trajectory

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass
class GatherContext:
    """Counts, running means and the progress bar of one gather.

    Attributes:
        pbar: The progress bar, or None.
        metric_sums: Sum of each metric over the trajectories so far; `reward` is one of them.
        metric_divisors: How many trajectories had the metric.
        max_metrics: How many running means the bar shows; None shows all.
        max_exceptions: How many rollouts may fail: a count, or a share of all where 0 < x < 1.
        increment_pbar: Whether a finished rollout moves the bar.
        total: How many rollouts there are, as far as is known.
        num_failed: How many of them failed so far.
        first_failure: The first of their exceptions.
        waits_for_all: Groups do not raise by themselves; whoever made the context raises at its end.
        places_told: Where failures came from whose traceback was logged already.
    """

    pbar: tqdm | None = None
    metric_sums: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    metric_divisors: Counter[str] = field(default_factory=Counter)
    max_metrics: int | None = None
    max_exceptions: float = 0
    increment_pbar: bool = True
    total: int = 0
    num_failed: int = 0
    first_failure: BaseException | None = None
    waits_for_all: bool = False
    places_told: set[tuple[type, str, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        if not self.max_exceptions >= 0:  # catches NaN as well
            raise ConfigurationError(
                f"max_exceptions is {self.max_exceptions}; give a count, 0 or more, "
                "or a share of all rollouts between 0 and 1"
            )

    def expect(self, num_rollouts: int) -> None:
        """Add rollouts that are about to start to the total."""
        self.total += num_rollouts
        if self.pbar is not None and self.increment_pbar:
            self.pbar.total = self.total
            self.pbar.refresh()
        enclosing = _enclosing_group.get()
        if enclosing is not None and enclosing.context is self:
            enclosing.counted_by_its_rollouts = True

    async def run_rollouts(
        self, rollouts: Sequence[Awaitable[Trajectory]]
    ) -> list[Trajectory | BaseException]:
        """Run rollouts side by side; outcomes in their order, see `run_rollout`."""
        try:
            return await run_together([self.run_rollout(rollout) for rollout in rollouts])
        finally:
            for rollout in rollouts:
                discard(rollout)

    async def run_rollout(self, rollout: Awaitable[Trajectory]) -> Trajectory | BaseException:
        """Run one rollout and return its trajectory, or the exception it raised.

        Raises:
            InferenceError: The rollout failed because the model's inference endpoint is gone.
        """
        return await self.attempt(rollout, self._take_trajectory)

    async def attempt(
        self, awaitable: Awaitable[Any], take: Callable[[Any], T]
    ) -> T | BaseException:
        """Await something and hand its result to `take`; a failure is counted, logged and returned.

        A cancellation from outside passes through, as do KeyboardInterrupt and SystemExit. A CancelledError
        that the awaitable raises by itself is a failure like any other.

        Raises:
            InferenceError: It failed because the model's inference endpoint is gone.
        """
        try:
            return take(await awaitable)
        except asyncio.CancelledError as error:
            if was_cancelled():
                raise
            return self._keep_failure(error)
        except Exception as error:  # noqa: BLE001 - a rollout is the user's code and may raise anything
            return self._keep_failure(error)

    def _take_trajectory(self, result: object) -> Trajectory:
        from art.trajectories import Trajectory

        if not isinstance(result, Trajectory):
            raise TypeError(f"the rollout returned a {type(result).__name__}, not a Trajectory")
        record_metrics(self, result)
        self.update_pbar(1)
        return result

    def _keep_failure(self, error: BaseException) -> BaseException:
        gone = inference_failure(error)
        if gone is not None:
            if isinstance(error, InferenceError):  # of a group inside this one
                raise error
            raise InferenceError(gone) from error
        self.num_failed += 1
        if self.first_failure is None:
            self.first_failure = error
        # At once: a bug in the rollout must be seen now, not when the slowest sibling has ended. But once: the
        # same bug in every rollout would bury everything else.
        place = _place_of(error)
        if place not in self.places_told:
            self.places_told.add(place)
            logger.warning("rollout failed (%d so far)", self.num_failed, exc_info=error)
        else:
            logger.debug("rollout failed as before (%d so far)", self.num_failed, exc_info=error)
        self.update_pbar(0)
        return error

    def update_pbar(self, n: int) -> None:
        """Move the bar by `n` rollouts and show the running means and the number of exceptions."""
        if self.pbar is None:
            return
        shown = list(self.metric_sums)[: self.max_metrics]
        postfix: dict[str, float] = {
            name: self.metric_sums[name] / max(1, self.metric_divisors[name]) for name in shown
        }
        if self.num_failed:
            postfix["exceptions"] = self.num_failed
        self.pbar.set_postfix(postfix, refresh=False)
        if n and self.increment_pbar:
            self.pbar.update(n)
        else:
            self.pbar.refresh()

    def too_many_exceptions(self) -> bool:
        """Tell whether more rollouts failed than `max_exceptions` allows."""
        if 0 < self.max_exceptions < 1:
            return self.num_failed / max(1, self.total) > self.max_exceptions
        return self.num_failed > self.max_exceptions

    def raise_if_too_many(self, *, at_end: bool = False) -> None:
        """Raise the first failure if more rollouts failed than allowed, with a note that tells how many.

        Args:
            at_end: Set by whoever made a context that `waits_for_all`.
        """
        if self.first_failure is None or not self.too_many_exceptions():
            return
        if self.waits_for_all and not at_end:
            return
        self.first_failure.add_note(
            f"{self.num_failed} of {max(self.total, self.num_failed)} rollouts failed; this is the first "
            f"failure. max_exceptions is {self.max_exceptions}: raise it to go on without the failed ones."
        )
        raise self.first_failure

    def absorb(self, other: GatherContext) -> None:
        """Add the counts and sums of another context."""
        self.total += other.total
        self.num_failed += other.num_failed
        self.first_failure = self.first_failure or other.first_failure
        for name, value in other.metric_sums.items():
            self.metric_sums[name] += value
        self.metric_divisors.update(other.metric_divisors)


def _place_of(error: BaseException) -> tuple[type, str, int]:
    frames = traceback.extract_tb(error.__traceback__)
    return (
        type(error),
        frames[-1].filename if frames else "",
        frames[-1].lineno or 0 if frames else 0,
    )


def record_metrics(context: GatherContext, trajectory: Trajectory) -> None:
    """Add a trajectory to the running means.

    Also writes the trajectory's `metrics["completion_tokens"]`: the mean number of logprob tokens per Choice.
    """
    num_tokens = [
        len(item.logprobs.content or item.logprobs.refusal or [])
        for item in trajectory.messages_and_choices
        if is_choice(item) and item.logprobs
    ]
    if num_tokens:
        trajectory.metrics["completion_tokens"] = sum(num_tokens) / len(num_tokens)
    for name, value in {"reward": trajectory.reward, **trajectory.metrics}.items():
        # What is no number is refused by name when the trajectory is logged.
        if isinstance(value, numbers.Real) and math.isfinite(value):
            context.metric_sums[name] += value
            context.metric_divisors[name] += 1


_gather_context: contextvars.ContextVar[GatherContext | None] = contextvars.ContextVar(
    "gather_context", default=None
)


def get_gather_context() -> GatherContext:
    """Return the context of the gather that this code runs in; outside of one, a fresh one of its own."""
    return _gather_context.get() or GatherContext()


@contextlib.contextmanager
def set_gather_context(context: GatherContext) -> Iterator[None]:
    """Make a context the current one for the block, and for every task started in it."""
    token = _gather_context.set(context)
    try:
        yield
    finally:
        _gather_context.reset(token)


@dataclass
class EnclosingGroup:
    """A coroutine that returns a whole group, and may run the group's rollouts through the same context.

    Attributes:
        context: The context that counts it.
        counted_by_its_rollouts: Rollouts inside it were counted one by one.
    """

    context: GatherContext
    counted_by_its_rollouts: bool = False


_enclosing_group: contextvars.ContextVar[EnclosingGroup | None] = contextvars.ContextVar(
    "enclosing_group", default=None
)


@contextlib.contextmanager
def enclosing_group(context: GatherContext) -> Iterator[EnclosingGroup]:
    """Notice, for the block, whether rollouts inside are counted one by one."""
    group = EnclosingGroup(context)
    token = _enclosing_group.set(group)
    try:
        yield group
    finally:
        _enclosing_group.reset(token)
