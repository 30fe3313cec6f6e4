"""Asks a run's endpoint as any client may, over plain HTTP, so that a check sees status and body as they came."""

from __future__ import annotations

import functools
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx

from art_conformance.failure import CheckFailed, expect

if TYPE_CHECKING:
    import asyncio
    import ssl
    from collections.abc import AsyncIterator

    from art_conformance.run import Run

REFUSED = (404,)
"""What a name that means nothing is answered with."""

MAX_TOKENS = 4
_PROMPT = "Say a."
# Of what a check may take, so that the endpoint is told to be silent before the check as a whole is.
_PATIENCE = 0.8


@dataclass(frozen=True)
class Answer:
    """What came back.

    Attributes:
        sent: What was asked, in words.
        status: The HTTP status.
        body: The JSON body; None where it is none.
    """

    sent: str
    status: int
    body: Any

    @property
    def choice(self) -> dict[str, Any]:
        """The first choice; empty where there is none."""
        choices = self.body.get("choices") if isinstance(self.body, dict) else None
        return choices[0] if isinstance(choices, list) and choices else {}

    @property
    def step(self) -> Any:
        """The checkpoint that says it answered."""
        return self.choice.get("checkpoint_step")

    @property
    def text(self) -> Any:
        """The text; None where there is none."""
        return (self.choice.get("message") or {}).get("content")

    def told(self, of: int | None = None) -> str:
        """Say in words what came back; the step is told from `of`, which is N."""
        if not self.choice:
            return f"HTTP {self.status}, no choice"
        if not isinstance(self.step, int):
            return f"HTTP {self.status}, a choice with checkpoint_step {self.step!r}"
        return f"HTTP {self.status}, a choice of checkpoint_step {relative(self.step, of)}"


def relative(step: int, of: int | None) -> str:
    """Return a step by its distance from N: N, N+1, N-2; as a number where no N is given."""
    return str(step) if of is None else "N" if step == of else f"N{step - of:+d}"


def expect_step(answer: Answer, step: int, *, of: int | None = None) -> None:
    """Fail unless a checkpoint answered.

    Args:
        answer: What came back.
        step: The checkpoint.
        of: N; steps in the message are told from it, since a run's own numbers say nothing.
    """
    is_answered = answer.status == httpx.codes.OK and answer.text is not None
    expected = f"HTTP 200, a choice of checkpoint_step {relative(step, of)}"
    is_right = is_answered and type(answer.step) is int and answer.step == step
    expect(is_right, got=answer.told(of), expected=expected, sent=answer.sent)


def expect_refused(
    answer: Answer, statuses: tuple[int, ...] = REFUSED, *, of: int | None = None
) -> None:
    """Fail unless a request was refused by one of these statuses, and without a text."""
    expected = f"HTTP {' or '.join(map(str, statuses))}, no text"
    is_refused = answer.status in statuses and not answer.choice
    expect(is_refused, got=answer.told(of), expected=expected, sent=answer.sent)


@dataclass
class Streamed:
    """What came back as a stream of server-sent events.

    Attributes:
        sent: What was asked, in words.
        status: The HTTP status.
        chunks: The chunks, as JSON; those that hold an error too.
        is_done: Whether it was ended by `[DONE]`.
    """

    sent: str
    status: int
    chunks: list[dict[str, Any]] = field(default_factory=list)
    is_done: bool = False

    @property
    def choices(self) -> list[dict[str, Any]]:
        """The first choice of each chunk that has one."""
        return [chunk["choices"][0] for chunk in self.chunks if chunk.get("choices")]

    @property
    def is_refused(self) -> bool:
        """Whether it is an error that a client can tell: by its status, or by an event."""
        return self.status >= httpx.codes.BAD_REQUEST or any("error" in c for c in self.chunks)

    @property
    def is_finished(self) -> bool:
        """Whether it was answered to the end."""
        reasons = [choice.get("finish_reason") for choice in self.choices]
        return self.is_done and any(reasons) and not self.is_refused


class EndpointClient:
    """Asks one endpoint.

    Args:
        http: Knows the address, and the key or none.
    """

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def ask(self, name: str, sent: str, **options: Any) -> Answer:
        """Ask for a short completion.

        Args:
            name: The `model` of the request.
            sent: What is asked, in words, for the message of a failure.
            **options: Further fields of the request.
        """
        sent = f"a chat completion of {sent}"
        try:
            response = await self._http.post("chat/completions", json=_request(name, options))
        except httpx.HTTPError as error:
            raise _no_answer(error, sent) from error
        return Answer(sent, response.status_code, _json(response))

    async def stream(self, name: str, sent: str, begun: asyncio.Event, **options: Any) -> Streamed:
        """Ask for a streamed completion, and read it to its end.

        Args:
            name: The `model` of the request.
            sent: What is asked, in words, for the message of a failure.
            begun: Set when the first of it has come, or none will come.
            **options: Further fields of the request.
        """
        sent = f"a streamed chat completion of {sent}"
        body = {**_request(name, options), "stream": True}
        try:
            async with self._http.stream("POST", "chat/completions", json=body) as response:
                streamed = Streamed(sent, response.status_code)
                async for line in response.aiter_lines():
                    begun.set()
                    data = line.removeprefix("data:").strip()
                    if data == "[DONE]":
                        streamed.is_done = True
                    elif line.startswith("data:"):
                        streamed.chunks.append(json.loads(data))
        except httpx.HTTPError as error:
            raise _no_answer(error, sent) from error
        finally:
            begun.set()
        return streamed

    async def models(self) -> Answer:
        """Ask which models there are."""
        sent = "GET {base_url}/models"
        try:
            response = await self._http.get("models")
        except httpx.HTTPError as error:
            raise _no_answer(error, sent) from error
        return Answer(sent, response.status_code, _json(response))

    async def listed(self) -> list[str]:
        """Return the ids of the models there are; fail where they are not told."""
        answer = await self.models()
        entries = answer.body.get("data") if isinstance(answer.body, dict) else None
        is_told = answer.status == httpx.codes.OK and isinstance(entries, list)
        expected = "HTTP 200, a list of models"
        expect(is_told, got=f"HTTP {answer.status}", expected=expected, sent=answer.sent)
        return [str(entry["id"]) for entry in entries or []]


@asynccontextmanager
async def endpoint_of(
    run: Run, *, address: tuple[str, str] | None = None, api_key: str | None = None
) -> AsyncIterator[EndpointClient]:
    """Connect to the endpoint of a run.

    Args:
        run: The run; `register` has set its model's address and key.
        address: Another (base_url, api_key).
        api_key: Another key; an empty one is not sent at all.
    """
    model = run.model
    url, key = address or (model.inference_base_url or "", model.inference_api_key or "")
    key = key if api_key is None else api_key
    expect(url, got="none", expected="an address of the endpoint", sent="model.register(backend)")
    async with httpx.AsyncClient(
        base_url=url,
        headers={"Authorization": f"Bearer {key}"} if key else {},
        timeout=run.stage.adapter.timeout_s * _PATIENCE,
        verify=_certificates(),
        # The way to this machine never leads over a proxy that the environment names.
        trust_env=httpx.URL(url).host not in {"localhost", "127.0.0.1", "::1"},
    ) as http:
        yield EndpointClient(http)


@functools.cache
def _certificates() -> ssl.SSLContext:
    """The certificates to trust, read once: it takes longer than a request to this machine."""
    return httpx.create_ssl_context()


def latest_name(run: Run) -> str:
    """Return the name that always means the newest checkpoint."""
    names = run.capabilities.inference_name
    return run.model.name if names is None else names._model_inference_name(run.model)


def _request(name: str, options: dict[str, Any]) -> dict[str, Any]:
    messages = [{"role": "user", "content": _PROMPT}]
    return {"model": name, "messages": messages, "max_tokens": MAX_TOKENS, **options}


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return None


def _no_answer(error: httpx.HTTPError, sent: str) -> CheckFailed:
    return CheckFailed(type(error).__name__, expected="an answer", sent=sent)
