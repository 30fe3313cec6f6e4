"""One vLLM process for one base model; `vllm_side/launch.py` is the child."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import httpx

from art.errors import ConfigurationError, InferenceError
from art_local.base_model import resolve_base_model
from art_local.devices import default_device
from art_local.loop_free_lock import LoopFreeLock
from art_local.managed_child import ManagedChild
from art_local.vllm_options import SIDE, VllmOptions, lora_rank_of_vllm

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

logger = logging.getLogger(__name__)

# How long a healthy server may take to answer, with all cores busy.
_ANSWER_S = 60.0


class VllmServer:
    """One vLLM process with one base model, for any number of models, backends and event loops.

    It is reached over a unix socket in a private directory, and never over the network. It is started when
    first needed, and anew when it has died; use it as a context manager, or call `close`. It also ends with
    this process, however that ends, and whatever it started ends with it.
    """

    def __init__(
        self,
        base_model: str,
        *,
        python: str | os.PathLike[str] | None = None,
        device: str | None = None,
        threads: int | None = None,
        engine_args: Mapping[str, Any] | None = None,
        server_args: Mapping[str, Any] | None = None,
        max_lora_rank: int = 16,
        start_timeout_s: float = 300.0,
    ) -> None:
        """Check what can be checked; nothing is started yet.

        Args:
            base_model: A built-in model's name, a directory, or an id on the Hugging Face hub.
            python: The interpreter that has vLLM, which may be in an environment of its own; by default this
                one.
            device: "cpu", "cuda" or "cuda:N", for which the build of vLLM must be made; by default "cuda" where there
                is a GPU.
            threads: Threads that a CPU server computes with; 1 by default, as more is slower for small models.
            engine_args: Options of vLLM's engine, by their names with underscores. With `enable_sleep_mode` it can
                give the GPU's memory back for a while.
            server_args: Options of its OpenAI server.
            max_lora_rank: Highest rank of the adapters it will serve.
            start_timeout_s: How long it may take to come up. A minute is common; compilation can take several.

        Raises:
            ConfigurationError: The base model or the interpreter is not there, or an option cannot be set.
        """
        self.base_model = resolve_base_model(base_model)
        self._options = VllmOptions(
            self.base_model,
            device=device or default_device(),
            threads=threads or 1,
            max_lora_rank=max_lora_rank,
            engine_args=dict(engine_args or {}),
            server_args=dict(server_args or {}),
        )
        environment = self._options.environment(os.environ)
        self._options.arguments(Path())  # raises where one cannot be set
        self._child = ManagedChild(
            # -P: a file of the user's working directory must not shadow an import of the child.
            [_interpreter(python), "-P", str(SIDE / "launch.py")],
            f"vLLM server of base model {base_model!r}",
            InferenceError,
            start_timeout_s,
            environment,
        )
        # Short, whatever TMPDIR says: the path of a unix socket has at most 107 bytes.
        self._directory = tempfile.TemporaryDirectory(prefix="art-", dir=_short_tempdir())
        self._starts = 0
        self._lock = LoopFreeLock()

    @property
    def socket(self) -> Path:
        """The unix socket on which the running server answers HTTP."""
        return Path(self._directory.name) / "vllm"

    @property
    def can_sleep(self) -> bool:
        """Whether `sleep` does something, or is at least understood."""
        return self._options.can_sleep

    @property
    def max_lora_rank(self) -> int:
        """Highest rank of the adapters that it serves."""
        return lora_rank_of_vllm(self._options.max_lora_rank)

    @property
    def starts(self) -> int:
        """How often it came up. A higher number than before: it was restarted, and has no adapters."""
        return self._starts

    def failure(self) -> str | None:
        """Return None while it runs or was never started, else how it ended, with the end of its log."""
        return self._child.failure()

    async def ensure(self) -> None:
        """Return when it is up and healthy; one that died or hangs is replaced.

        Any number of callers, on any event loops, may wait at once.

        Raises:
            InferenceError: It did not come up; with the end of its log.
            ConfigurationError: The interpreter has no vLLM that can be used.
        """
        async with self._lock.hold():
            if self._child.is_up and not await self._is_healthy():
                logger.warning(
                    "the vLLM server of %s is not healthy; it is replaced", self.base_model
                )
                self._child.end_hung()
            await self._child.ensure(self._config, self._on_ready)

    def _config(self) -> dict[str, Any]:
        return {"arguments": self._options.arguments(self.socket), "socket": str(self.socket)}

    def _on_ready(self, event: dict[str, Any]) -> None:
        self._starts += 1
        logger.info("vLLM %s serves %s", event["version"], self.base_model)

    async def _is_healthy(self) -> bool:
        # The engine is a process of its own: it may be dead while the server still answers.
        async with self._client() as client:
            try:
                response = await client.get("/health")
            except httpx.HTTPError:
                return False
        return response.is_success

    async def sleep(self) -> None:
        """Free the GPU's memory: the weights go to the host's, the cache is dropped. Nobody may ask meanwhile.

        It needs `enable_sleep_mode` among the engine's options. On a CPU nothing is freed.

        Raises:
            InferenceError: vLLM refused, or does not answer.
        """
        await self._post("/sleep?level=1&mode=abort")

    async def wake(self) -> None:
        """Take the memory back; harmless while awake.

        Raises:
            InferenceError: vLLM refused, or does not answer.
        """
        await self._post("/wake_up")

    async def _post(self, route: str) -> None:
        async with self._client() as client:
            try:
                response = await client.post(route)
            except httpx.HTTPError as error:
                reason = self.failure() or "it runs, but does not answer"
                raise InferenceError(f"vLLM {route}: {type(error).__name__}: {reason}") from error
        if response.is_error:
            raise InferenceError(f"vLLM refused {route}: {response.text}")

    def _client(self) -> httpx.AsyncClient:
        transport = httpx.AsyncHTTPTransport(uds=str(self.socket), verify=False)  # no TLS in there
        return httpx.AsyncClient(transport=transport, base_url="http://vllm", timeout=_ANSWER_S)

    async def close(self) -> None:
        """End it, for good. Repeatable."""
        await asyncio.to_thread(self.kill)

    def kill(self) -> None:
        """End it, for good, from code that cannot await. Repeatable."""
        self._child.kill()
        self._directory.cleanup()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()


def _interpreter(python: str | os.PathLike[str] | None) -> str:
    if python is None:
        return sys.executable
    found = shutil.which(Path(python).expanduser())
    if found is None:
        raise ConfigurationError(
            f"python={os.fspath(python)!r} is not a program that can be run; name the interpreter of the "
            "environment that has vLLM, such as '.venv-vllm/bin/python'"
        )
    return str(
        Path(found).absolute()
    )  # not resolved: a link into an environment is that environment


def _short_tempdir() -> str | None:
    return "/tmp" if len(os.fsencode(tempfile.gettempdir())) > 60 else None  # noqa: S108 - a private one in it
