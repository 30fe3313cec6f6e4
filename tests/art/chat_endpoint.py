"""A real chat endpoint on this machine, whose answers a test decides."""

from __future__ import annotations

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def completion(model: str, content: str) -> dict[str, Any]:
    """The body of a chat completion with one choice."""
    message = {"role": "assistant", "content": content}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    fields = {"id": "1", "object": "chat.completion", "created": 1, "model": model}
    return {**fields, "choices": [choice]}


@contextlib.contextmanager
def serving(answer: Callable[[str], tuple[int, dict[str, Any]]]) -> Iterator[str]:
    """Serve chat requests until the block ends; gives the address.

    Args:
        answer: Returns status and body for the name of the model that is asked.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # connections are kept, as those of a real server are

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, body = answer(request["model"])
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - named by the base class
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = (
            True  # a kept connection of a test that failed must not hold up the end
        )
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            thread.join()
