from __future__ import annotations

import asyncio
import functools
import logging

import pytest

import art
from art.errors import ConfigurationError


class Flaky:
    """Raises on the first calls and returns the number of the call after that."""

    __name__ = "flaky"

    def __init__(self, failures: int, error: type[BaseException] = ConnectionError) -> None:
        self.failures = failures
        self.error = error
        self.calls = 0

    def __call__(self) -> int:
        self.calls += 1
        if self.calls <= self.failures:
            raise self.error(f"call {self.calls}")
        return self.calls


def test_a_function_is_called_until_it_returns() -> None:
    """Two failures of three attempts do not show."""
    flaky = Flaky(2)
    assert art.retry(delay=0)(flaky)() == 3


async def test_a_coroutine_function_is_awaited_until_it_returns() -> None:
    """The decorated function stays a coroutine function with its name."""
    flaky = Flaky(2)

    @art.retry(delay=0)
    async def call() -> int:
        await asyncio.sleep(0)
        return flaky()

    assert await call() == 3
    assert call.__name__ == "call"
    assert asyncio.iscoroutinefunction(call)


def test_the_last_attempt_raises_its_own_exception() -> None:
    """No attempt is made beyond `max_attempts`."""
    flaky = Flaky(5)
    with pytest.raises(ConnectionError, match="call 2"):
        art.retry(max_attempts=2, delay=0)(flaky)()
    assert flaky.calls == 2


def test_other_exceptions_pass_at_once() -> None:
    """Only the exceptions named are worth another attempt; a list of them is fine too."""
    flaky = Flaky(1, ValueError)
    with pytest.raises(ValueError, match="call 1"):
        art.retry(exceptions=[ConnectionError, TimeoutError], delay=0)(flaky)()


async def test_a_cancellation_is_never_retried() -> None:
    """Not even where BaseException is named."""
    flaky = Flaky(1, asyncio.CancelledError)

    @art.retry(exceptions=(BaseException,), delay=0)
    async def call() -> int:
        return flaky()

    with pytest.raises(asyncio.CancelledError):
        await call()
    assert flaky.calls == 1


def test_on_retry_hears_of_every_failed_attempt_but_the_last(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It takes the place of the log's warning."""
    heard: list[tuple[str, int]] = []

    def on_retry(error: Exception, attempt: int) -> None:
        heard.append((str(error), attempt))

    with pytest.raises(ConnectionError):
        art.retry(delay=0, on_retry=on_retry)(Flaky(3))()
    assert heard == [("call 1", 1), ("call 2", 2)]
    assert caplog.records == []


def test_without_on_retry_a_warning_names_function_and_attempt(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The log tells what failed and how often."""
    art.retry(delay=0)(functools.partial(Flaky(1)))()
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert "attempt 1 of 3" in caplog.text
    assert "call 1" in caplog.text


def test_the_pause_grows_by_the_factor(caplog: pytest.LogCaptureFixture) -> None:
    """Pauses are delay, delay * factor and so on."""
    art.retry(max_attempts=4, delay=0.001, backoff_factor=3)(Flaky(3))()
    assert [f"{0.001 * 3**i:.3g} s" in caplog.messages[i] for i in range(3)] == [True] * 3


def test_at_least_one_attempt_is_needed() -> None:
    """Zero attempts are a configuration error."""
    with pytest.raises(ConfigurationError, match="max_attempts is 0"):
        art.retry(max_attempts=0)
