"""Call a function again when it fails."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from art.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


def retry(
    max_attempts: int = 3,
    delay: float = 0.25,
    backoff_factor: float = 2.0,
    exceptions: Iterable[type[BaseException]] = (Exception,),
    on_retry: Callable[[Exception, int], None] | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function, or a coroutine function, to be called again when it raises.

    A cancellation is never retried.

    Args:
        max_attempts: How often the function is called at most.
        delay: Seconds between the first two attempts.
        backoff_factor: What the delay is multiplied with after each further attempt.
        exceptions: Which exceptions are worth another attempt; others pass at once.
        on_retry: Called with the exception and the number of the attempt that raised it, in place of a
            warning in the log.

    Raises:
        ConfigurationError: `max_attempts` is less than 1.
    """
    if max_attempts < 1:
        raise ConfigurationError(f"max_attempts is {max_attempts}; at least one attempt is needed")
    policy = _Policy(max_attempts, delay, backoff_factor, tuple(exceptions), on_retry)

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def call_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                return await policy.call_async(functools.partial(function, *args, **kwargs))

            return cast("Callable[P, R]", call_async)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            return policy.call(functools.partial(function, *args, **kwargs))

        return call

    return decorate


@dataclass(frozen=True)
class _Policy:
    """How often and how fast to try again."""

    max_attempts: int
    delay_s: float
    backoff_factor: float
    exceptions: tuple[type[BaseException], ...]
    on_retry: Callable[[Exception, int], None] | None

    def call(self, function: functools.partial[R]) -> R:
        for attempt in range(1, self.max_attempts):
            try:
                return function()
            except self.exceptions as error:
                pause_s = self._report(function, attempt, error)
            time.sleep(pause_s)
        return function()

    async def call_async(self, function: functools.partial[Coroutine[Any, Any, R]]) -> R:
        for attempt in range(1, self.max_attempts):
            try:
                return await function()
            except asyncio.CancelledError:
                raise
            except self.exceptions as error:
                pause_s = self._report(function, attempt, error)
            await asyncio.sleep(pause_s)
        return await function()

    def _report(
        self, function: functools.partial[Any], attempt: int, error: BaseException
    ) -> float:
        """Tell of a failed attempt and return the seconds until the next one."""
        pause_s = self.delay_s * self.backoff_factor ** (attempt - 1)
        if self.on_retry is not None:
            self.on_retry(cast("Exception", error), attempt)
        else:
            logger.warning(
                "%r failed (attempt %d of %d), trying again in %.3g s: %s",
                function.func,
                attempt,
                self.max_attempts,
                pause_s,
                error,
            )
        return pause_s
