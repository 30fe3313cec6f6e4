"""What a whole process shares, and an adapter must leave as it finds it.

Many a change shows only once: who sets the logging level to the value that it has already changes nothing. So,
while a process is watched, each of these has a value that nobody else would give it, and gets its own back
afterwards.
"""

from __future__ import annotations

import io
import logging
import os
import random
import signal
import sys
import tempfile
import threading
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from art_conformance.instruments.audit import Audit

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

_UNUSUAL_SEED = 20_061
_UNUSUAL_LEVEL = 33


class _Unusual(Warning):
    """In no one's filter but ours."""


@dataclass(frozen=True)
class Aspect:
    """One thing that a process has once.

    Attributes:
        name: Its name in messages.
        read: Returns its value, one that can be compared; None where there is nothing of the kind.
        write: Gives it a value that was read.
    """

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]


def _write_environ(value: dict[str, str]) -> None:
    for name in os.environ.keys() - value:
        del os.environ[name]
    for name, text in value.items():
        if os.environ.get(name) != text:
            os.environ[name] = text


def _read_logger(name: str | None) -> Callable[[], Any]:
    def read() -> Any:
        logger = logging.getLogger(name)
        return (
            logger.level,
            logger.disabled,
            logger.propagate,
            list(logger.handlers),
            list(logger.filters),
        )

    return read


def _write_logger(name: str | None) -> Callable[[Any], None]:
    def write(value: Any) -> None:
        logger = logging.getLogger(name)
        logger.disabled, logger.propagate = value[1:3]
        logger.handlers[:], logger.filters[:] = value[3:]
        logger.setLevel(value[0])  # it forgets which levels are enabled, so it comes last

    return write


def _write_filters(value: Any) -> None:
    warnings.filters[:] = value  # type: ignore[index]


def _read_signals() -> dict[int, Any]:
    return {int(number): signal.getsignal(number) for number in signal.valid_signals()}


def _read_numpy() -> Any:
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        return None
    name, keys, *rest = numpy.random.get_state(legacy=True)
    return name, keys.tolist(), *rest


def _write_numpy(value: Any) -> None:
    if value is not None:
        sys.modules["numpy"].random.set_state(value)


def _read_torch() -> Any:
    torch: Any = sys.modules.get("torch")
    return None if torch is None else torch.get_rng_state().tolist()


def _write_torch(value: Any) -> None:
    if value is not None:
        torch: Any = sys.modules["torch"]
        torch.set_rng_state(torch.tensor(value, dtype=torch.uint8))


def _read_wandb() -> Any:
    return getattr(sys.modules.get("wandb"), "run", None)


ASPECTS = (
    Aspect("the working directory", os.getcwd, os.chdir),
    Aspect("os.environ", lambda: dict(os.environ), _write_environ),
    Aspect("the global state of random", random.getstate, random.setstate),
    Aspect("the global state of numpy.random", _read_numpy, _write_numpy),
    Aspect("the global state of torch's random numbers", _read_torch, _write_torch),
    Aspect("the root logger", _read_logger(None), _write_logger(None)),
    Aspect("the logger 'art'", _read_logger("art"), _write_logger("art")),
    Aspect("logging.disable", lambda: logging.root.manager.disable, logging.disable),
    Aspect("the filters of warnings", lambda: list(warnings.filters), _write_filters),
    Aspect("the signal handlers", _read_signals, lambda _: None),  # the main thread's alone
    Aspect("wandb.run", _read_wandb, lambda _: None),
)


def process_state() -> dict[str, Any]:
    """Return the value of every aspect, by its name."""
    return {aspect.name: aspect.read() for aspect in ASPECTS}


def restore(state: dict[str, Any]) -> None:
    """Put everything back that has changed."""
    for aspect in ASPECTS:
        if aspect.read() != state[aspect.name]:
            aspect.write(state[aspect.name])


class WatchedProcess:
    """Watches what all of a process shares while it is entered, and puts it back at the end.

    Meanwhile the working directory and the directory of temporary files are new and empty.

    Args:
        directory: An empty directory for the two.
        limit_s: After so many seconds everything is put back in any case: whoever blocks the event loop for
            good must not keep the process as it is now.

    Attributes:
        working_directory: The process is there.
        temporary: Where temporary files go.
    """

    def __init__(self, directory: Path, limit_s: float) -> None:
        self.working_directory, self.temporary = directory / "cwd", directory / "tmp"
        self._changed: set[str] = set()
        self._audit = Audit("os.putenv", "os.unsetenv")
        self._restoring = threading.Lock()
        self._limit = threading.Timer(limit_s, self._restore)
        self._limit.daemon = True

    def __enter__(self) -> Self:
        self._before = process_state()
        self._streams = sys.stdout, logging.lastResort, tempfile.tempdir
        self._printed = sys.stdout = _Printed(sys.stdout)
        self._make_unusual()
        self._usual_here = process_state()
        self._audit.__enter__()
        self._limit.start()
        return self

    def _make_unusual(self) -> None:
        for directory in (self.working_directory, self.temporary):
            directory.mkdir()
        os.chdir(self.working_directory)
        os.environ["TMPDIR"] = tempfile.tempdir = str(self.temporary)
        random.seed(_UNUSUAL_SEED)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(_UNUSUAL_SEED)
        if "torch" in sys.modules:
            sys.modules["torch"].random.manual_seed(_UNUSUAL_SEED)
        logging.lastResort = logging.NullHandler()
        logging.getLogger("art").setLevel(_UNUSUAL_LEVEL)
        logging.getLogger().setLevel(_UNUSUAL_LEVEL)
        logging.getLogger().handlers[:] = []  # else logging.basicConfig would do nothing
        warnings.simplefilter("ignore", category=_Unusual)

    def look(self) -> None:
        """Compare everything with how it was at the start."""
        now = process_state()
        self._changed |= self._changes_of_environ(now.pop("os.environ"))
        for name, value in now.items():
            expected = self._usual_here[name]
            was_there = expected is not None or name == "wandb.run"
            if value != expected and was_there:  # numpy and torch may come later
                self._changed.add(name)

    def _changes_of_environ(self, now: dict[str, str]) -> set[str]:
        expected = self._usual_here["os.environ"]
        names = {name for name in {*now, *expected} if now.get(name) != expected.get(name)}
        names |= {os.fsdecode(args[0]) for _, args in self._audit.events}
        return {f"os.environ[{name!r}]" for name in names}

    @property
    def changed(self) -> list[str]:
        """What was found changed, whenever it was looked at."""
        return sorted(self._changed)

    @property
    def printed(self) -> str:
        """What was printed to sys.stdout."""
        return self._printed.text

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._limit.cancel()
        self._restore()

    def _restore(self) -> None:
        with self._restoring:
            if sys.stdout is self._printed:
                self._audit.__exit__(None, None, None)
                sys.stdout, logging.lastResort, tempfile.tempdir = self._streams
                restore(self._before)


class _Printed(io.TextIOBase):
    """Keeps what is printed, except by the main thread: that is the suite's own."""

    def __init__(self, usual: Any) -> None:
        self._usual = usual
        self._parts: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._parts)

    def write(self, text: str) -> int:
        if threading.current_thread() is threading.main_thread():
            self._usual.write(text)
        else:
            self._parts.append(text)
        return len(text)

    def flush(self) -> None:
        self._usual.flush()

    def isatty(self) -> bool:
        return False
