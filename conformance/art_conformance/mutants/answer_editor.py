"""Stands before the reference's endpoint, and changes what passes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from art_conformance.reference.endpoint import Endpoint

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    EditChoice = Callable[[dict[str, Any]], None]
    EditEvent = Callable[[bytes], bytes]


class AnswerEditor:
    """An ASGI app that hands requests on to another one, and changes its answers.

    Args:
        app: The other one.
        choice: Changes a choice of a whole answer in place.
        event: Takes an event of a streamed answer, and returns what is sent instead.
    """

    def __init__(
        self, app: ASGIApp, *, choice: EditChoice | None = None, event: EditEvent | None = None
    ) -> None:
        self._app, self._choice, self._event = app, choice, event

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, as ASGI asks."""
        head: Message = {}

        async def send_edited(message: Message) -> None:
            nonlocal head
            if message["type"] == "http.response.start":
                head = message  # held back, since the length may change
                return
            is_stream = b"text/event-stream" in dict(head["headers"])[b"content-type"]
            body = message.get("body", b"")
            body = self._edited_event(body) if is_stream else self._edited(body)
            if head.get("status"):
                headers = dict(head["headers"])
                if not is_stream:
                    headers[b"content-length"] = str(len(body)).encode()
                await send({**head, "headers": list(headers.items())})
                head = {**head, "status": 0}
            await send({**message, "body": body})

        await self._app(scope, receive, send_edited)

    def _edited(self, body: bytes) -> bytes:
        answer = json.loads(body)
        if self._choice is None or "choices" not in answer:
            return body
        for choice in answer["choices"]:
            self._choice(choice)
        return json.dumps(answer).encode()

    def _edited_event(self, body: bytes) -> bytes:
        return body if self._event is None else self._event(body)


def serving(**parts: Any) -> type[Endpoint]:
    """Return the reference's endpoint with some parts replaced, by their names."""
    return cast("type[Endpoint]", type("BrokenEndpoint", (Endpoint,), parts))


def answering(
    *, choice: EditChoice | None = None, event: EditEvent | None = None
) -> type[Endpoint]:
    """Return the reference's endpoint with answers changed; see `AnswerEditor`."""
    return serving(_front=lambda _, gateway: AnswerEditor(gateway.app, choice=choice, event=event))
