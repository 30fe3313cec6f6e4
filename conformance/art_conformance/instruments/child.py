"""A process that trains and is killed in the act: the checks on resuming start it, and go on where it was.

`python -m art_conformance.instruments.child` reads its `Orders` as JSON from its standard input.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from art_conformance.adapter import load_adapter
from art_conformance.failure import Unobservable, expect
from art_conformance.profile import PROFILES
from art_conformance.stage import Stage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

KilledAt: TypeAlias = Literal["first-event", "end"]

# Of the time that the whole check has: what comes after needs some too.
_SHARE_OF_TIME = 0.7
_TAIL_CHARACTERS = 500


@dataclass(frozen=True)
class Orders:
    """What a child is to do: train once, train again, and be killed in that.

    Attributes:
        target: Names the adapter.
        workspace: The parent's workspace, where books and state are.
        name: Name of the model, of the backend's state, and of the child's own files.
        seed: The parent's.
        killed_at: When it is killed: at the first event of the second train's stream, or where that has come to
            a clean end, before the frontend hears of it.
        import_path: Where modules are looked for.
    """

    target: str
    workspace: str
    name: str
    seed: int
    killed_at: KilledAt
    import_path: list[str]


@asynccontextmanager
async def killed_child(stage: Stage, name: str, killed_at: KilledAt) -> AsyncIterator[None]:
    """Start a child and wait for its death. What it leaves running is ended at the end of the block.

    Raises:
        Unobservable: No other process can make the adapter, or find what this one made.
        CheckFailed: It ended by itself, or did not come to the point in time.
    """
    if stage.target is None:
        raise Unobservable("the adapter was given as an object, so no other process can make it")
    if stage.adapter.restart is not None:
        raise Unobservable("Adapter.restart needs the backend that a killed process takes with it")
    orders = Orders(
        stage.target, str(stage.workspace), name, stage.seed, killed_at, [*map(str, sys.path)]
    )
    log = stage.workspace / f"{name}.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "art_conformance.instruments.child"),
            stdin=asyncio.subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        await _until_killed(process, orders, log, stage.adapter.timeout_s * _SHARE_OF_TIME)
        yield
    finally:
        # It is dead, unless it hung; what it started may live on.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def _until_killed(
    process: asyncio.subprocess.Process, orders: Orders, log: Path, timeout_s: float
) -> None:
    sent = f"a process that trains twice, to be killed in the second train ({orders.killed_at})"
    expected = "killed in the second train"
    try:
        async with asyncio.timeout(timeout_s):
            await process.communicate(json.dumps(asdict(orders)).encode())
    except TimeoutError:
        got = f"not there after {timeout_s:g} s{_tail(log)}"
        expect(False, got=got, expected=expected, sent=sent)
    is_killed = process.returncode == -signal.SIGKILL
    got = f"it ended by itself, with status {process.returncode}{_tail(log)}"
    expect(is_killed, got=got, expected=expected, sent=sent)


def _tail(log: Path) -> str:
    text = log.read_text(errors="replace").strip()[-_TAIL_CHARACTERS:]
    return f"; the end of its output: {text}" if text else ""


# --- in the child


def main() -> None:
    """Do as standard input says."""
    orders = Orders(**json.load(sys.stdin))
    sys.path[:] = orders.import_path
    try:
        asyncio.run(_obey(orders))
    except Exception as error:  # noqa: BLE001 - the parent tells it in one line
        sys.exit(f"{type(error).__name__}: {error}")


async def _obey(orders: Orders) -> None:
    workspace = Path(orders.workspace)
    stage = Stage(
        load_adapter(orders.target),
        workspace / f"{orders.name}.child",
        profile=PROFILES["quick"],
        seed=orders.seed,
    )
    stage.workspace = workspace
    run = await stage.new_run(orders.name, backend=stage.new_backend(orders.name))
    await run.train()

    async def deadly(stream: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for event in stream:
            if orders.killed_at == "first-event":
                break
            yield event
        os.kill(os.getpid(), signal.SIGKILL)

    run.recorder.interfere = deadly
    await run.train()


if __name__ == "__main__":
    main()
