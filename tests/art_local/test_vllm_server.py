from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from art.errors import ArtError, ConfigurationError, InferenceError
from art_local.vllm_server import VllmServer
from tests.art_local.processes import wait_until_gone
from tests.art_local.vllm import (
    BASE_MODEL,
    START_TIMEOUT_S,
    client_of,
    engine_core,
    group_of,
    processes_in_group,
    vllm_python,
)

pytestmark = pytest.mark.process
real_vllm = [pytest.mark.vllm, pytest.mark.xdist_group("vllm"), pytest.mark.timeout(1800)]

# What the launcher takes for vLLM: it answers what the launcher and the parent ask, has a child as vLLM has,
# and does what the variable STAND_IN says.
STAND_IN = """
import http.server, json, os, socketserver, subprocess, sys, time
wish = os.environ.get("STAND_IN", "")
print("loading", wish, "with", sys.argv[1:3], flush=True)
if wish == "hang":
    time.sleep(600)
if wish == "fail":
    raise SystemExit("no such flag")
engine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])

class Handler(http.server.BaseHTTPRequestHandler):
    address_string = log_message = lambda self, *args: ""
    def do_GET(self):
        self.answer(200 if engine.poll() is None else 503, {"engine": engine.pid})
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        results = [{"class": "GpuSampler", "wrapped": wish != "sampler"}]
        self.answer(200, {"results": results})
    def answer(self, status, body):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    pass

if __name__ == "__main__":
    path = next(word for word in sys.argv if word.startswith("--uds=")).removeprefix("--uds=")
    Server(path, Handler).serve_forever()
"""


@pytest.fixture
def new_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., VllmServer]]:
    """Makes servers whose vLLM is the stand-in above, told what it should do."""
    package = tmp_path / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    (package / "api_server.py").write_text(STAND_IN)
    (tmp_path / "vllm" / "__init__.py").write_text("__version__ = '9.8.7'\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    made: list[VllmServer] = []

    def new(wish: str = "", **options: Any) -> VllmServer:
        monkeypatch.setenv("STAND_IN", wish)
        made.append(VllmServer(BASE_MODEL, python=sys.executable, **options))
        return made[-1]

    yield new
    for server in made:
        server.kill()


def health(server: VllmServer) -> dict[str, Any]:
    with client_of(server) as client:
        found: dict[str, Any] = client.get("/health").json()
        return found


async def test_it_comes_up_once_however_many_wait(new_server: Callable[..., VllmServer]) -> None:
    """Callers on event loops of several threads share one start."""
    server = new_server()
    threads = [threading.Thread(target=lambda: asyncio.run(server.ensure())) for _ in range(3)]
    for thread in threads:
        thread.start()
    await asyncio.gather(server.ensure(), server.ensure())
    for thread in threads:
        thread.join()
    assert server.starts == 1
    assert server.failure() is None


async def test_its_socket_is_private_and_goes_with_it(
    new_server: Callable[..., VllmServer],
) -> None:
    """Nobody else on the machine can reach the server, and close leaves neither process nor file."""
    server = new_server()
    await server.ensure()
    group = group_of(server)
    assert server.socket.parent.stat().st_mode & 0o777 == 0o700
    assert len(os.fsencode(server.socket)) < 108
    assert os.getsid(group[0]) != os.getsid(0)  # Ctrl+C of our terminal does not reach it
    await server.close()
    await server.close()
    assert wait_until_gone(group) == []
    assert not server.socket.parent.exists()
    with pytest.raises(InferenceError, match="closed"):
        await server.ensure()


async def test_a_long_temporary_directory_is_not_used(
    new_server: Callable[..., VllmServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The socket's path stays within what the system allows, whatever TMPDIR says."""
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    server = new_server()
    await server.ensure()
    assert health(server)


async def test_a_server_that_died_is_replaced(new_server: Callable[..., VllmServer]) -> None:
    """Its end is told, the next call starts another, and the count of starts shows it to others."""
    server = new_server()
    await server.ensure()
    group = group_of(server)
    os.kill(group[0], signal.SIGKILL)
    while (failure := server.failure()) is None:
        await asyncio.sleep(0.01)
    assert "signal 9" in failure
    # What it had started is ended as well, before anybody asks for a new one.
    assert wait_until_gone(group) == []
    await server.ensure()
    assert server.starts == 2
    assert server.failure() is None
    assert health(server)
    assert wait_until_gone(group) == []


async def test_an_interpreter_without_vllm_is_told(
    new_server: Callable[..., VllmServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the interpreter, and says how to install vLLM."""
    monkeypatch.setenv("PYTHONPATH", "")
    with pytest.raises(ArtError, match="pip install vllm"):
        await new_server().ensure()


async def test_an_engine_that_died_behind_its_server_is_replaced(
    new_server: Callable[..., VllmServer],
) -> None:
    """A server that still answers, without an engine, does not count as healthy."""
    server = new_server()
    await server.ensure()
    engine = health(server)["engine"]
    os.kill(engine, signal.SIGKILL)
    assert wait_until_gone([engine]) == []
    await server.ensure()
    assert server.starts == 2
    with client_of(server) as client:
        assert client.get("/health").status_code == 200


async def test_c155_a_server_that_never_comes_up_is_ended(
    new_server: Callable[..., VllmServer],
) -> None:
    """After the time it may take it is killed, and the error has the end of its log."""
    server = new_server("hang", start_timeout_s=3.0)
    with pytest.raises(InferenceError, match=r"(?s)no sign of life for 3 s.*loading hang"):
        await server.ensure()
    assert server.starts == 0
    assert wait_until_gone(group_of(server)) == []


async def test_what_vllm_dies_of_at_the_start_is_told(
    new_server: Callable[..., VllmServer],
) -> None:
    """The error has its exit status and its last words."""
    server = new_server("fail")
    with pytest.raises(InferenceError, match=r"(?s)exit status 1.*no such flag"):
        await server.ensure()


async def test_a_foreign_sampler_is_refused(new_server: Callable[..., VllmServer]) -> None:
    """A worker whose log probabilities are not corrected stops the start, and vLLM's version is named."""
    server = new_server("sampler")
    with pytest.raises(InferenceError, match=r"vLLM 9\.8\.7: .*top-p and top-k.*GpuSampler"):
        await server.ensure()
    assert server.starts == 0


def test_it_ends_with_its_parent(
    new_server: Callable[..., VllmServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A parent that is killed leaves no process and no socket."""
    new_server()  # sets the environment
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    assert_it_ends_with_its_parent(Path(sys.executable))


def assert_it_ends_with_its_parent(python: Path) -> None:
    script = (
        "import asyncio, sys, time\n"
        "from art_local.vllm_server import VllmServer\n"
        f"server = VllmServer({BASE_MODEL!r}, python={str(python)!r}, start_timeout_s={START_TIMEOUT_S})\n"
        "asyncio.run(server.ensure())\n"
        "print(server._child.process.pid, server.socket, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    ) as parent:
        try:
            assert parent.stdout is not None
            pid, socket = parent.stdout.readline().split()
            group = processes_in_group(int(pid))
            assert len(group) >= 2
        finally:
            parent.kill()
    assert wait_until_gone(group) == []
    assert not Path(socket).parent.exists()


def test_an_interpreter_that_is_not_there_is_told_at_once() -> None:
    """The message says what to name instead."""
    with pytest.raises(ConfigurationError, match="interpreter of the environment that has vLLM"):
        VllmServer(BASE_MODEL, python="/no/such/python")


def test_an_option_that_cannot_be_set_is_told_at_once() -> None:
    """No process is started for it."""
    with pytest.raises(ConfigurationError, match="uds='x' cannot be set"):
        VllmServer(BASE_MODEL, engine_args={"uds": "x"})


# --- with real vLLM ---


class TestRealVllm:
    pytestmark = real_vllm

    async def test_it_serves_chats(self, vllm_server: VllmServer) -> None:
        """An answer has token ids and log probabilities."""
        await vllm_server.ensure()
        with client_of(vllm_server) as client:
            answer = client.post(
                "/v1/chat/completions",
                json={
                    "model": vllm_server.base_model,
                    "messages": [{"role": "user", "content": "Say b"}],
                    "max_tokens": 4,
                    "logprobs": True,
                    "return_token_ids": True,
                },
            ).json()
        choice = answer["choices"][0]
        assert answer["prompt_token_ids"]
        assert len(choice["token_ids"]) == len(choice["logprobs"]["content"]) > 0

    async def test_a_flag_that_vllm_does_not_know_is_told(self) -> None:
        """Its own message reaches the caller, and nothing is left running."""
        server = VllmServer(
            BASE_MODEL,
            python=vllm_python(),
            engine_args={"no_such_option": 1},
            start_timeout_s=START_TIMEOUT_S,
        )
        async with server:
            with pytest.raises(InferenceError, match=r"(?s)exit status 2.*no-such-option"):
                await server.ensure()
            assert wait_until_gone(group_of(server)) == []

    def test_it_ends_with_its_parent(self) -> None:
        """Engine and worker are gone too after the parent was killed."""
        assert_it_ends_with_its_parent(vllm_python())

    @pytest.mark.skipif(
        os.environ.get("ART_CAMPAIGN") != "full",
        reason="starts it twice more, a minute each; the stand-in and the backend's tests have the same",
    )
    async def test_it_survives_the_death_of_its_engine(self) -> None:
        """A killed engine is told with the log, the server comes back, and killing its head ends all of it."""
        async with VllmServer(
            BASE_MODEL, python=vllm_python(), start_timeout_s=START_TIMEOUT_S
        ) as server:
            await server.ensure()
            first = group_of(server)
            os.kill(engine_core(first), signal.SIGKILL)
            while (
                server.failure() is None
            ):  # vLLM notices it by itself, and ends; else the test times out
                await asyncio.sleep(0.1)
            assert "EngineCore" in str(server.failure())
            await server.ensure()
            assert server.starts == 2
            assert wait_until_gone(first) == []
            second = group_of(server)
            with client_of(server) as client:
                assert client.get("/health").status_code == httpx.codes.OK
            os.kill(second[0], signal.SIGKILL)
            assert wait_until_gone(second[:1]) == []
        assert wait_until_gone(second) == []
