from __future__ import annotations

import asyncio
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest

from art.errors import ConfigurationError, TrainingError
from art_local.config import WorkerSettings
from art_local.managed_child import ManagedChild
from art_local.process import python_module
from art_local.service import ModelService
from art_local.service_config import ServiceConfig
from tests.art_local.processes import is_alive

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

pytestmark = pytest.mark.process

# A child without torch: it does what its configuration says, and tells how many messages it got by then.
CHILD = """
import os, sys, time
from art_local.child import open_channel
channel = open_channel()
for name, value in channel.config.items():
    if name == "sleep":
        time.sleep(value)
    if name == "say":
        print(value, file=sys.stderr)
    if name == "send":
        channel.send(value)
    if name == "exit":
        os._exit(value)
channel.send({"event": "ready", "commands": channel.commands.qsize()})
time.sleep(60)
"""
READY: dict[str, Any] = {"event": "ready", "commands": 0}


@pytest.fixture
async def new_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[..., ManagedChild]]:
    """Makes managed children of the module above."""
    (tmp_path / "scripted_child.py").write_text(CHILD)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    )
    made = []

    def new(start_timeout_s: float = 60.0) -> ManagedChild:
        made.append(
            ManagedChild(python_module("scripted_child"), "child", TrainingError, start_timeout_s)
        )
        return made[-1]

    yield new
    for child in made:
        child.kill()


async def start(child: ManagedChild, **config: Any) -> dict[str, Any]:
    """Bring it up; returns what it said when it was ready."""
    events: list[dict[str, Any]] = []
    await child.ensure(lambda: config, events.append)
    return events[-1] if events else {}


async def test_it_is_started_once(new_child: Callable[..., ManagedChild]) -> None:
    """A second call finds the same process, and neither configures it again."""
    child = new_child()
    child.spawn()
    assert await start(child) == READY
    process = child.process
    assert await start(child) == {}
    assert child.process is process
    assert child.is_up


async def test_a_cancelled_start_leaves_nothing_behind(
    new_child: Callable[..., ManagedChild],
) -> None:
    """The half-started process is gone, and the next call starts one that is configured once."""
    child = new_child()
    task = asyncio.create_task(start(child, sleep=60))
    await asyncio.sleep(0)  # it is started, and waited for
    process = child.process
    assert process is not None
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not is_alive(process.pid)
    assert await start(child) == READY


async def test_a_start_that_fails_is_told_and_can_be_repeated(
    new_child: Callable[..., ManagedChild],
) -> None:
    """What the child reports, or its exit status with its last words, reaches the caller each time."""
    child = new_child()
    wrong = {"event": "failed", "error": "ConfigurationError", "message": "no such model"}
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="no such model"):
            await start(child, send=wrong)
        with pytest.raises(TrainingError, match=r"(?s)exit status 3.*out of luck"):
            await start(child, say="out of luck", exit=3)
    assert await start(child) == READY


async def test_a_start_that_hangs_is_ended(new_child: Callable[..., ManagedChild]) -> None:
    """After the time it may take the process is killed and named."""
    child = new_child(start_timeout_s=0.01)
    with pytest.raises(TrainingError, match=r"child gave no sign of life for 0\.01 s"):
        await start(child, sleep=60)
    assert child.process is not None
    assert not is_alive(child.process.pid)


async def test_a_dead_process_is_replaced(new_child: Callable[..., ManagedChild]) -> None:
    """Its end is told until the next call starts another."""
    child = new_child()
    await start(child)
    assert child.process is not None
    os.kill(child.process.pid, signal.SIGKILL)
    assert await child.has_ended()
    assert "signal 9" in (child.failure() or "")
    assert not child.is_up
    assert await start(child) == READY
    assert child.failure() is None


async def test_close_ends_even_a_stopped_process_for_good(
    new_child: Callable[..., ManagedChild],
) -> None:
    """Whoever waits for it hears that it was closed, and no later call starts another."""
    child = new_child()
    task = asyncio.create_task(start(child, sleep=60))
    await asyncio.sleep(0)
    assert child.process is not None
    os.kill(child.process.pid, signal.SIGSTOP)
    await child.close()
    await child.close()
    assert not is_alive(child.process.pid)
    for call in (task, start(child)):
        with pytest.raises(TrainingError, match="it was closed"):
            await call


def test_one_caller_at_a_time_across_event_loops(tmp_path: Path) -> None:
    """Callers on event loops of several threads never work on a model's processes together."""
    service = ModelService(ServiceConfig("m", "base", tmp_path, WorkerSettings("base")))
    inside: list[int] = []
    most: list[int] = []

    async def call() -> None:
        async with service.exclusive():
            inside.append(1)
            await asyncio.sleep(0.001)
            most.append(len(inside))
            inside.pop()

    async def calls() -> None:
        await asyncio.gather(*(call() for _ in range(3)))

    threads = [threading.Thread(target=asyncio.run, args=(calls(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 9
