from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.local

KEY = "sk-secret-of-the-test"
USER: Any = [{"role": "user", "content": "Tell a secret-word story."}]


class Server:
    """A server process and what it said."""

    def __init__(self, log: Path, **config: Any) -> None:
        self.log = log
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "art_local.server"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"api_key": KEY, **config}) + "\n")
        self.process.stdin.flush()
        self.event: dict[str, Any] = json.loads(self.process.stdout.readline())

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.event['port']}/v1"

    @property
    def client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=self.base_url, api_key=KEY, max_retries=0)

    def post(self, path: str, **body: Any) -> httpx.Response:
        url = f"{self.base_url}/{path}"
        return httpx.post(url, json=body, headers={"Authorization": f"Bearer {KEY}"}, timeout=60)

    def chat(self, **body: Any) -> httpx.Response:
        return self.post(
            "chat/completions", **{"model": "m", "messages": USER, "max_tokens": 8, **body}
        )

    def health(self) -> dict[str, Any]:
        answer: dict[str, Any] = httpx.get(self.base_url.replace("/v1", "/health")).json()
        return answer

    def exit_status(self) -> int:
        """Wait for the process to end by itself."""
        return self.process.wait()

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


@contextmanager
def running(log: Path, **config: Any) -> Iterator[Server]:
    server = Server(log, **config)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(scope="module")
def config(tiny_model_dir: Path, tiny_adapter_dir: Callable[..., Path]) -> dict[str, Any]:
    return {
        "model_name": "m",
        "base_model": str(tiny_model_dir),
        "base_model_name": "tiny/base",
        "adapters": [
            {"name": "m@0", "path": str(tiny_adapter_dir(10))},
            {"name": "m@3", "path": str(tiny_adapter_dir(13))},
        ],
        "latest": "m@3",
        "device": "cpu",
    }


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, config: dict[str, Any]) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("server") / "log", **config) as server:
        assert server.event["event"] == "ready"
        yield server


def plain_model(model_dir: str, adapter: Path | None) -> Any:
    """The model as transformers and peft run it."""
    from peft import PeftModel

    from art_local.pretrained import load_pretrained

    model, _ = load_pretrained(model_dir, "cpu")
    return model if adapter is None else PeftModel.from_pretrained(model, adapter).eval()


def plain_logprobs(model: Any, choice: dict[str, Any]) -> list[float]:
    """Log-probabilities of a choice's tokens by one plain forward, from nothing but what the choice carries."""
    import torch

    prompt, completion = choice["prompt_token_ids"], choice["token_ids"]
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([prompt + completion])).logits[
            0, len(prompt) - 1 : -1
        ]
    logprobs = (logits / (choice["temperature"] or 1.0)).log_softmax(-1)
    chosen: list[float] = logprobs.gather(1, torch.tensor(completion)[:, None])[:, 0].tolist()
    return chosen


async def test_choices_carry_their_tokens_and_the_logprobs_of_their_own_weights(
    server: Server, config: dict[str, Any], tiny_adapter_dir: Callable[..., Path]
) -> None:
    """Through the plain client, concurrent requests on two steps and the base each match a plain forward."""
    weights = {"m": tiny_adapter_dir(13), "m@0000": tiny_adapter_dir(10), "tiny/base": None}
    async with server.client as client:
        answers = await asyncio.gather(
            *(
                client.chat.completions.create(
                    model=name, messages=USER, max_tokens=20, temperature=temperature, n=2
                )
                for name in weights
                for temperature in (0.0, 0.7)
            )
        )
    assert [answer.model for answer in answers[::2]] == ["m@3", "m@0", "tiny/base"]
    for answer, name in zip(answers, [name for name in weights for _ in range(2)], strict=True):
        for choice in answer.choices:
            extras: Any = choice
            assert extras.checkpoint_step == {"m": 3, "m@0000": 0, "tiny/base": None}[name]
            assert len(extras.token_ids) == len(choice.logprobs.content) <= 20  # type: ignore[union-attr, arg-type]  # always there
            logprobs = [token.logprob for token in choice.logprobs.content]  # type: ignore[union-attr]  # always there
            expected = plain_logprobs(
                plain_model(config["base_model"], weights[name]), choice.model_dump()
            )
            assert logprobs == pytest.approx(expected, abs=1e-5)


def test_the_extras_are_in_the_raw_answer(server: Server) -> None:
    """A client that is not OpenAI's finds the extras in the choice's JSON."""
    (choice,) = server.chat(seed=1).json()["choices"]
    assert choice["checkpoint_step"] == 3
    assert choice["temperature"] == 1.0
    assert len(choice["token_ids"]) == len(choice["logprobs"]["content"])
    assert bytes(b for token in choice["logprobs"]["content"][:-1] for b in token["bytes"])


async def test_a_stream_gives_the_text_of_the_plain_answer(server: Server) -> None:
    """With the same seed, streamed text and tokens are those of the plain answer."""
    options: dict[str, Any] = {
        "model": "m@3",
        "messages": USER,
        "seed": 5,
        "max_tokens": 60,
        "temperature": 1.5,
    }
    async with server.client as client:
        whole = await client.chat.completions.create(**options)
        chunks = [
            chunk async for chunk in await client.chat.completions.create(**options, stream=True)
        ]
    assert (
        "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        == whole.choices[0].message.content
    )
    extras: Any = whole.choices[0]
    tokens = [
        token for chunk in chunks for token in chunk.choices[0].model_dump().get("token_ids", [])
    ]
    assert tokens == extras.token_ids
    assert chunks[0].choices[0].model_dump()["prompt_token_ids"] == extras.prompt_token_ids


def test_unknown_names_are_404_and_wrong_keys_401(server: Server) -> None:
    """No name but the served ones, and no key but the right one, gets any text."""
    for name in ("m@1", "other", str(server.event["port"])):
        assert server.chat(model=name).status_code == 404
    url = f"{server.base_url}/chat/completions"
    assert httpx.post(url, json={}, headers={"Authorization": "Bearer no"}).status_code == 401


async def test_a_checkpoint_comes_and_goes_while_requests_run(
    server: Server, tiny_adapter_dir: Callable[..., Path]
) -> None:
    """A loaded step serves at once; unloaded, it is a 404 at once, and its request in flight finishes."""
    directory = str(tiny_adapter_dir(14))
    assert server.post("load_lora_adapter", lora_name="m@4", lora_path=directory).status_code == 200
    async with server.client as client:
        stream = await client.chat.completions.create(
            model="m@4", messages=USER, max_tokens=400, temperature=0, stream=True
        )
        first = await anext(stream)
        unload = asyncio.create_task(
            asyncio.to_thread(server.post, "unload_lora_adapter", lora_name="m@4")
        )
        status = 200
        while status == 200:
            status = (await asyncio.to_thread(server.chat, model="m@4", max_tokens=1)).status_code
        assert status == 404
        rest = [chunk async for chunk in stream]
    assert first.model == "m@4"
    assert rest[-1].choices[0].finish_reason in {"stop", "length"}
    assert (await unload).status_code == 200


def test_an_adapter_that_does_not_fit_is_refused(server: Server, tmp_path: Path) -> None:
    """A directory without an adapter is a 400 that names it."""
    response = server.post("load_lora_adapter", lora_name="m@9", lora_path=str(tmp_path))
    assert response.status_code == 400
    assert str(tmp_path) in response.json()["error"]["message"]
    assert server.chat(model="m@9").status_code == 404


async def test_a_client_that_goes_away_frees_its_row(server: Server) -> None:
    """After a client closes its connection nothing is in flight any more, long before the answer would end."""
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {KEY}"}) as client:
        body = {"model": "m", "messages": USER, "n": 8, "stream": True}
        async with client.stream(
            "POST", f"{server.base_url}/chat/completions", json=body
        ) as response:
            await anext(response.aiter_lines())
    while (await asyncio.to_thread(server.health))["requests_in_flight"]:
        await asyncio.sleep(0.01)


def test_logs_hold_neither_keys_nor_what_was_said(server: Server) -> None:
    """Neither the key nor a message's words are in the log, whether requests succeed or fail."""
    server.chat()
    server.chat(model="nobody")
    server.chat(temperature=-1)
    log = server.log.read_text()
    assert KEY not in log
    assert "secret-word" not in log


def test_sigint_is_the_parents_business(server: Server) -> None:
    """Ctrl+C, which reaches the whole terminal group, does not end the server."""
    server.process.send_signal(signal.SIGINT)
    assert server.chat().status_code == 200
    assert server.process.poll() is None


async def test_sigterm_lets_requests_finish_and_refuses_new_ones(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    """A request in flight ends whole, and the process exits with 0."""
    with running(tmp_path / "log", **config) as server:
        async with server.client as client:
            stream = await client.chat.completions.create(
                model="m", messages=USER, max_tokens=300, temperature=0, stream=True
            )
            await anext(stream)
            server.process.send_signal(signal.SIGTERM)
            rest = [chunk async for chunk in stream]
        assert rest[-1].choices[0].finish_reason is not None
        assert await asyncio.to_thread(server.exit_status) == 0


async def test_the_drain_time_ends_what_does_not_finish(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    """With no drain time, SIGTERM ends a running request with an error the client sees, and exits with 0."""
    with running(tmp_path / "log", **config, drain_s=0.0, max_rows=1) as server:
        async with server.client as client:
            stream = await client.chat.completions.create(
                model="m", messages=USER, n=50, temperature=0, stream=True
            )
            await anext(stream)
            server.process.send_signal(signal.SIGTERM)
            with pytest.raises(openai.APIError, match="closed"):
                [chunk async for chunk in stream]
        assert await asyncio.to_thread(server.exit_status) == 0


def test_the_end_of_stdin_ends_the_server(tmp_path: Path, config: dict[str, Any]) -> None:
    """A parent that is gone leaves no server behind."""
    server = Server(tmp_path / "log", **config)
    server.close()
    assert server.process.returncode == 0
    with pytest.raises(httpx.ConnectError):
        server.health()


def test_a_port_that_is_taken_is_told(tmp_path: Path, config: dict[str, Any]) -> None:
    """The error names the port and what to do, and the process exits with 1."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with running(tmp_path / "log", **config, port=port) as server:
            assert server.event["event"] == "error"
            assert str(port) in server.event["message"]
            assert "choose another" in server.event["message"]
            assert server.exit_status() == 1


def test_a_base_model_that_is_not_there_is_told(tmp_path: Path, config: dict[str, Any]) -> None:
    """The error names the directory and what to pass instead, and the process exits with 1."""
    missing = str(tmp_path / "missing")
    with running(tmp_path / "log", **{**config, "base_model": missing}) as server:
        assert server.event["event"] == "error"
        assert missing in server.event["message"]
        assert "pass a directory" in server.event["message"]
        assert server.exit_status() == 1


def test_a_configuration_that_is_wrong_is_told(tmp_path: Path) -> None:
    """The parent hears of any failure, so that it never waits for a server that will not come."""
    with running(tmp_path / "log", nonsense=1) as server:
        assert server.event["event"] == "error"
        assert "nonsense" in server.event["message"]
        assert server.exit_status() == 1
