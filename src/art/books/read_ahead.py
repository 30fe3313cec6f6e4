"""Reading ahead: the next part of a file is read while its caller is busy with this one."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

P = TypeVar("P")
T = TypeVar("T")


def read_ahead(read: Callable[[P], T], parts: Iterable[P], depth: int) -> Iterator[T]:
    """Yield `read(part)` for each part in order, up to `depth` of them read in threads before they are asked for."""
    with ThreadPoolExecutor(depth, "art-read") as pool:
        ahead: deque[Future[T]] = deque()
        for part in parts:
            ahead.append(pool.submit(read, part))
            if len(ahead) > depth:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
