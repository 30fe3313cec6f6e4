from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from art.books.lock import train_lock, write_lock
from art.errors import LogError, ModelBusy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOLD_TRAIN_LOCK = """
import asyncio, pathlib, sys
from art.books.lock import train_lock
async def main():
    async with train_lock(pathlib.Path(sys.argv[1])):
        print("held", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
asyncio.run(main())
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model" / ".lock"


@pytest.fixture
def other_process(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the train lock until its stdin ends."""
    command = [sys.executable, "-c", HOLD_TRAIN_LOCK, str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_write_lock_excludes_threads(path: Path) -> None:
    """Threads of one process hold the write lock one after the other."""
    inside = 0
    most = 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(20):
            with write_lock(path):
                inside += 1
                most = max(most, inside)
                os.sched_yield()
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_write_lock_gives_up_at_its_deadline(path: Path) -> None:
    """A lock that stays held raises an error that names the file."""
    with (
        write_lock(path),
        pytest.raises(LogError, match=str(path)),
        write_lock(path, timeout_s=0.05),
    ):
        pass


def test_write_lock_is_free_after_an_error(path: Path) -> None:
    """An exception inside the block releases the lock."""
    with pytest.raises(KeyError), write_lock(path):
        raise KeyError
    with write_lock(path, timeout_s=0.0):
        pass


def test_lock_that_cannot_be_opened_names_its_path(path: Path) -> None:
    """A directory in the lock's place is an error of the log."""
    path.mkdir(parents=True)
    with pytest.raises(LogError, match=str(path)), write_lock(path):
        pass


async def test_trains_of_one_loop_run_in_order_of_arrival(path: Path) -> None:
    """Train calls that start together run one at a time, first come first served."""
    log: list[str] = []

    async def train(name: str) -> None:
        async with train_lock(path):
            log.append(f"{name} starts")
            await asyncio.sleep(0.3)
            log.append(f"{name} ends")

    await asyncio.gather(*(train(name) for name in "abc"))
    assert log == [f"{name} {what}" for name in "abc" for what in ("starts", "ends")]


async def test_trains_of_different_event_loops_wait_for_each_other(path: Path) -> None:
    """A train call in a thread with a loop of its own waits for one here."""
    log: list[str] = []

    async def train() -> None:
        async with train_lock(path):
            log.append("other")

    async with train_lock(path):
        other = asyncio.create_task(asyncio.to_thread(asyncio.run, train()))
        await asyncio.sleep(0.3)
        log.append("here")
    await other
    assert log == ["here", "other"]


async def test_one_directory_by_two_paths_is_one_lock(path: Path, tmp_path: Path) -> None:
    """A symbolic link to the model directory does not let a second train in."""
    path.parent.mkdir()
    (tmp_path / "link").symlink_to(path.parent)
    async with train_lock(path):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5), train_lock(tmp_path / "link" / path.name):
                pass


async def test_waiting_for_the_train_lock_can_be_cancelled(path: Path) -> None:
    """A cancelled waiter leaves the line, and the next one gets its turn."""

    async def train() -> str:
        async with train_lock(path):
            return "done"

    async with train_lock(path):
        first, second = asyncio.create_task(train()), asyncio.create_task(train())
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
    assert await second == "done"


async def test_the_holder_can_be_cancelled(path: Path) -> None:
    """A train call cancelled inside the lock releases it."""
    entered = asyncio.Event()

    async def train() -> None:
        async with train_lock(path):
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(train())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(5), train_lock(path):
        pass


async def test_another_process_raises_busy_with_its_pid(
    path: Path, other_process: subprocess.Popen[str]
) -> None:
    """A model that another process trains is refused, naming the process and the directory."""
    with pytest.raises(ModelBusy, match=rf"{path.parent}.*process {other_process.pid}"):
        async with train_lock(path):
            pass


async def test_c105_a_killed_process_leaves_the_lock_free(
    path: Path, other_process: subprocess.Popen[str]
) -> None:
    """The death of the holder releases the lock at once."""
    other_process.kill()
    other_process.wait()
    async with train_lock(path):
        pass


def test_three_runs_of_an_event_loop_take_the_same_lock(path: Path) -> None:
    """The lock is bound to no event loop."""

    async def train() -> None:
        async with train_lock(path):
            await asyncio.sleep(0)

    for _ in range(3):
        asyncio.run(train())


async def test_a_forked_child_does_not_hold_its_parents_lock(path: Path) -> None:
    """A child forked during a train neither keeps the lock alive nor waits for itself."""
    program = """
import asyncio, os, pathlib, sys
from art.books.lock import train_lock
async def train():
    async with train_lock(pathlib.Path(sys.argv[1])):
        print("trained", flush=True)
lock = train_lock(pathlib.Path(sys.argv[1]))
asyncio.new_event_loop().run_until_complete(lock.__aenter__())
if os.fork() > 0:
    os.kill(os.getpid(), 9)
for word in sys.stdin:
    asyncio.run(train())
"""
    command = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.wait()
        async with train_lock(path):
            pass
        process.stdin.write("go\n")
        process.stdin.flush()
        assert process.stdout.readline() == "trained\n"
