"""The vLLM process: vLLM's OpenAI server on a unix socket, under a parent that may be in another environment.

Run by path with the interpreter that has vLLM, in which this package need not be installed: standard library
and vLLM only. The first line of stdin is `{"arguments": [...], "socket": path}`; the events that go out over
stdout are `{"event": "ready", "version": ...}` and `{"event": "error", "message": ...}`. Logs go to stderr.

Whoever starts it makes it the leader of a process group of its own. At the end of stdin the parent is gone, and
the whole group is killed: vLLM's engine and workers are processes of their own.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import os
import runpy
import shutil
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

# Not `vllm serve`: it looks for a distribution named vllm, which the build for CPUs is not.
_SERVER = "vllm.entrypoints.openai.api_server"

_PAUSE_S = 0.1
_ANSWER_S = 10.0
# The parent has the real deadline.
_WORKERS_ANSWER_S = 300.0


class _Connection(http.client.HTTPConnection):
    """An HTTP connection over a unix socket."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def main() -> None:
    """Serve until killed."""
    events = os.dup(1)
    os.dup2(2, 1)  # stray prints must not corrupt the events
    # A forked child that outlives this process must not keep the parent waiting for events. Not closed: a child
    # of that child would then close whatever has the number by then.
    os.register_at_fork(after_in_child=lambda: os.dup2(2, events, inheritable=False))
    config = json.loads(sys.stdin.readline())
    Path(config["socket"]).unlink(missing_ok=True)  # of a server that was killed
    threading.Thread(
        target=_end_with_parent, args=(Path(config["socket"]),), name="parent", daemon=True
    ).start()
    threading.Thread(
        target=_tell_when_ready, args=(config["socket"], events), name="ready", daemon=True
    ).start()
    if importlib.util.find_spec("vllm") is None:
        message = f"{sys.executable} has no vLLM; install it there with `pip install vllm`, or name another interpreter"
        os.write(events, (json.dumps({"event": "error", "message": message}) + "\n").encode())
        raise SystemExit(1)
    # Its own sockets go there too: elsewhere their paths may be too long.
    os.environ["VLLM_RPC_BASE_PATH"] = str(Path(config["socket"]).parent)
    sys.argv = ["vllm", *config["arguments"]]
    runpy.run_module(_SERVER, run_name="__main__", alter_sys=True)


def _end_with_parent(path: Path) -> None:
    # Not sys.stdin: its lock would be held here while the process forks and exits.
    while os.read(0, 4096):
        pass
    shutil.rmtree(path.parent, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


def _tell_when_ready(path: str, events: int) -> None:
    while True:
        # Until it serves: no such file, connection refused, or no answer yet.
        with contextlib.suppress(OSError, http.client.HTTPException):
            if _request(path, "GET", "/health")[0] == http.HTTPStatus.OK:
                break
        time.sleep(_PAUSE_S)
    import vllm

    problem = _wrong_sampler(path)
    if problem is None:
        event = {"event": "ready", "version": vllm.__version__}
    else:
        event = {"event": "error", "message": f"vLLM {vllm.__version__}: {problem}"}
    os.write(events, (json.dumps(event) + "\n").encode())


def _wrong_sampler(path: str) -> str | None:
    """Ask the workers which sampler they use; None if our wrapped one, else what is wrong."""
    try:
        status, text = _request(
            path,
            "POST",
            "/collective_rpc",
            {"method": "sampler_in_use"},
            timeout_s=_WORKERS_ANSWER_S,
        )
    except (OSError, http.client.HTTPException) as error:
        return f"its workers could not be asked about their sampler: {error!r}"
    if status == http.HTTPStatus.OK and all(
        told["wrapped"] for told in json.loads(text)["results"]
    ):
        return None
    return (
        "its workers use a sampler that gives log probabilities after top-p and top-k, which cannot be trained "
        f"on; leave out the options that choose another sampler, or use another version of vLLM ({text})"
    )


def _request(
    path: str,
    method: str,
    route: str,
    body: dict[str, Any] | None = None,
    timeout_s: float = _ANSWER_S,
) -> tuple[int, str]:
    with contextlib.closing(_Connection(path, timeout_s)) as connection:
        connection.request(
            method,
            route,
            body=None if body is None else json.dumps(body),
            headers={"Content-Type": "application/json"},
        )
        response = connection.getresponse()
        return response.status, response.read().decode()


if __name__ == "__main__":
    main()
