"""A server that the real wandb can talk to, and that can fall silent."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

_BUCKET = {
    "id": "bucket",
    "displayName": "run",
    "config": "{}",
    "summaryMetrics": "{}",
    "historyLineCount": 0,
    "eventsLineCount": 0,
    "logLineCount": 0,
    "historyTail": "[]",
    "eventsTail": "[]",
    "tags": [],
    "project": {"id": "project", "name": "p", "entity": {"id": "entity", "name": "me"}},
}


class WandbServer(ThreadingHTTPServer):
    """Answers as little as wandb needs, and keeps what it hears.

    `state` is "up"; "down" (a proxy says so); or "mute" (it is there, but no query of wandb is answered).
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.state: Literal["up", "down", "mute"] = "up"
        self.rows: list[dict[str, Any]] = []
        self.authorizations: set[str] = set()
        self.num_requests = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: wandb drops connections as it likes."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: WandbServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        server = self.server
        server.num_requests += 1
        if server.state == "mute" and self.path != "/":
            while server.state == "mute":
                time.sleep(0.05)
            self.close_connection = True
            return
        if server.state == "down":
            self._answer(503, {})
            return
        if authorization := self.headers.get("Authorization"):
            server.authorizations.add(authorization)
        if self.path == "/graphql":
            self._answer(200, {"data": self._data(json.loads(body))})
            return
        if self.path.endswith("/file_stream"):
            history = json.loads(body).get("files", {}).get("wandb-history.jsonl", {})
            server.rows += [json.loads(line) for line in history.get("content", [])]
        self._answer(200, {})

    do_GET = do_PUT = do_POST  # noqa: N815 - the names that http.server calls

    def _data(self, request: dict[str, Any]) -> dict[str, Any]:
        variables = request.get("variables") or {}
        if "upsertBucket" in request["query"]:
            bucket = {**_BUCKET, "name": variables.get("name")}
            return {"upsertBucket": {"bucket": bucket, "inserted": True}}
        if "createRunFiles" in request["query"]:
            files = [{"name": n, "uploadUrl": f"{self.server.url}/up"} for n in variables["files"]]
            return {"createRunFiles": {"runID": "bucket", "uploadHeaders": [], "files": files}}
        return {"model": None, "project": None, "viewer": None, "serverInfo": None}

    def _answer(self, status: int, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


@contextlib.contextmanager
def running_server() -> Iterator[WandbServer]:
    """A server on a port of its own, in a thread."""
    with WandbServer() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.state = "up"  # ends what waits
            server.shutdown()
            thread.join()
