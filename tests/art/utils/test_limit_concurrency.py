from __future__ import annotations

import asyncio

import pytest

from art.errors import ConfigurationError
from art.utils import limit_concurrency


class Gauge:
    """Counts how many calls run at once."""

    def __init__(self) -> None:
        self.running = 0
        self.highest = 0

    async def call(self, key: str = "") -> str:
        self.running += 1
        self.highest = max(self.highest, self.running)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self.running -= 1
        return key


async def test_no_more_than_n_calls_run_at_once() -> None:
    """All of them run in the end, and results are handed through."""
    gauge = Gauge()
    limited = limit_concurrency(3)(gauge.call)
    results = await asyncio.gather(*(limited(str(i)) for i in range(10)))
    assert results == [str(i) for i in range(10)]
    assert gauge.highest == 3


async def test_keys_have_limits_of_their_own() -> None:
    """Calls with different keys do not wait for each other."""
    gauge = Gauge()
    limited = limit_concurrency(1, derive_key=lambda key: key)(gauge.call)
    await asyncio.gather(*(limited(key) for key in "aabb"))
    assert gauge.highest == 2


def test_many_event_loops_in_a_row_work() -> None:
    """A limit that was contended in one loop does not break the next."""
    gauge = Gauge()
    limited = limit_concurrency(1)(gauge.call)

    async def main() -> None:
        await asyncio.gather(*(limited() for _ in range(3)))

    for _ in range(3):
        asyncio.run(main())
    assert gauge.highest == 1


async def test_an_exception_frees_the_place() -> None:
    """A failed call does not hold up the next one."""

    @limit_concurrency(1)
    async def failing() -> None:
        raise ValueError("boom")

    for _ in range(2):
        with pytest.raises(ValueError, match="boom"):
            await failing()


def test_at_least_one_call_must_be_able_to_run() -> None:
    """A limit of zero is a configuration error."""
    with pytest.raises(ConfigurationError, match="limit_concurrency"):
        limit_concurrency(0)
