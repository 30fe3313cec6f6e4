"""What the gateway adds to a chat: `python -m benchmarks.gateway`, about a minute.

A stub that answers every chat at once with 64 tokens stands for vLLM, on a unix socket, in a process of its own. The
same requests go to it directly, and through the gateway, which is a process too. They take turns, so that whatever else
the machine does meets both; a cell is the median of all rounds.

p50           Wall time of a request, one after the other: the median of a round. A busy machine makes it many
              times as long.
processor     Processor time of the gateway's process for a request, with 64 in flight at any time.
requests/s    With 64 in flight; what the client itself can do on this machine is the direct one.

Streamed answers come in 66 events, one a token; each is read, stamped and written again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from benchmarks.gateway_processes import KEY, MODEL, NUM_TOKENS

if TYPE_CHECKING:
    from collections.abc import Sequence

MS = 1e3
AT_ONCE = 64
_BAR_MS = 3.0
_BODY = {"model": MODEL, "messages": [{"role": "user", "content": "word " * 200}]}


class Process:
    """One of the two servers, while the block runs."""

    def __init__(self, role: str, path: Path) -> None:
        command = [sys.executable, "-m", "benchmarks.gateway_processes", role, str(path)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.address = self._read()["address"]

    def cpu_s(self) -> float:
        """Return its processor time so far, in seconds."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._read()["cpu_s"])

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit("stopped: a server ended; see above")
        read: dict[str, Any] = json.loads(line)
        return read

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.communicate()  # closes stdin, by which it ends


@dataclass(frozen=True)
class Round:
    """What one round found of one way to the stub.

    Attributes:
        p50_s: Median wall time of sequential requests.
        cpu_s: Processor time of the gateway's process for one of many concurrent requests.
        rate: Concurrent requests a second.
    """

    p50_s: float
    cpu_s: float
    rate: float


async def _ask(client: httpx.AsyncClient, body: dict[str, Any]) -> float:
    start = time.perf_counter()
    response = await client.post("/v1/chat/completions", json=body)
    if response.status_code != 200 or response.text.count('"logprob"') != NUM_TOKENS:
        sys.exit(f"stopped: a wrong answer: {response.text[:300]}")
    return time.perf_counter() - start


async def _measure(
    clients: Sequence[httpx.AsyncClient], gateway: Process, body: dict[str, Any], requests: int
) -> Round:
    for client in clients:
        await _ask(client, body)
    one_by_one = [await _ask(clients[0], body) for _ in range(requests)]

    left = iter(range(requests * 4))

    async def worker(client: httpx.AsyncClient) -> None:
        for _ in left:
            await _ask(client, body)

    cpu_s, start = gateway.cpu_s(), time.perf_counter()
    await asyncio.gather(*map(worker, clients))
    wall_s, cpu_s = time.perf_counter() - start, gateway.cpu_s() - cpu_s
    return Round(statistics.median(one_by_one), cpu_s / (requests * 4), requests * 4 / wall_s)


async def _compare(
    stub: Process, gateway: Process, body: dict[str, Any], rounds: int, requests: int
) -> tuple[list[Round], list[Round]]:
    host, port = gateway.address
    direct: list[Round] = []
    through: list[Round] = []
    async with AsyncExitStack() as stack:
        to_stub = await _clients(stack, "http://stub", uds=stub.address)
        to_gateway = await _clients(stack, f"http://{host}:{port}")
        for number in range(rounds):
            print(f"[{number + 1}/{rounds}]", file=sys.stderr)
            direct.append(await _measure(to_stub, gateway, body, requests))
            through.append(await _measure(to_gateway, gateway, body, requests))
    return direct, through


async def _clients(
    stack: AsyncExitStack, base_url: str, uds: str | None = None
) -> list[httpx.AsyncClient]:
    """Return a client for each request at once: one client would spend most on looking through its connections."""
    headers = {"Authorization": f"Bearer {KEY}"}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # to read certificates takes long
    clients = []
    for _ in range(AT_ONCE):
        transport = httpx.AsyncHTTPTransport(uds=uds, verify=context)
        client = httpx.AsyncClient(
            base_url=base_url, headers=headers, transport=transport, timeout=60
        )
        clients.append(await stack.enter_async_context(client))
    return clients


def _rows(kind: str, direct: Sequence[Round], through: Sequence[Round]) -> list[list[str]]:
    def median(rounds: Sequence[Round], name: str, scale: float) -> float:
        return statistics.median(scale * float(getattr(found, name)) for found in rounds)

    p50 = [median(rounds, "p50_s", MS) for rounds in (direct, through)]
    added_ms = p50[1] - p50[0]
    is_judged = kind == "whole answer"
    verdict = ("reached" if added_ms < _BAR_MS else "MISSED") if is_judged else ""
    bar = f"added < {_BAR_MS:g} ms" if is_judged else ""
    rate = [median(rounds, "rate", 1) for rounds in (direct, through)]
    cpu_ms = median(through, "cpu_s", MS)
    return [
        [f"{kind}: p50, ms", *(f"{v:.2f}" for v in p50), f"{added_ms:.2f}", bar, verdict],
        [f"{kind}: processor time at {AT_ONCE}, ms", "-", f"{cpu_ms:.2f}", f"{cpu_ms:.2f}", "", ""],
        [f"{kind}: requests/s at {AT_ONCE}", *(f"{v:.0f}" for v in rate), "", "", ""],
    ]


def _as_markdown(rows: Sequence[Sequence[str]]) -> str:
    lines = [["figure", "direct", "through the gateway", "added", "bar", "verdict"], *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    shown = ["| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in lines]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([shown[0], rule, *shown[1:]])


def main() -> None:
    """Measure, and print one table."""
    parser = argparse.ArgumentParser(description="What the gateway adds to a chat.")
    parser.add_argument("--rounds", type=int, default=5, help="of each way (default 5)")
    parser.add_argument("--requests", type=int, default=200, help="sequential ones in a round")
    arguments = parser.parse_args()
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"- load average at the start: {load}; {os.cpu_count()} processors\n")
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory(prefix="art-bench-") as scratch:
        path = Path(scratch) / "stub.sock"
        with Process("stub", path) as stub, Process("gateway", path) as gateway:
            few = max(10, arguments.requests // 10)  # 66 events each
            for kind, stream, requests in (
                ("whole answer", False, arguments.requests),
                ("streamed", True, few),
            ):
                body = {**_BODY, "stream": stream}
                found = _compare(stub, gateway, body, arguments.rounds, requests)
                rows += _rows(kind, *asyncio.run(found))
    print(_as_markdown(rows))


if __name__ == "__main__":
    main()
