"""The parent's side of a model's inference server; the child is `server`, or `vllm_gateway` in front of vLLM."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import httpx

from art.adapter_kit.blocking import run_blocking
from art.errors import InferenceError
from art_local.checkpoint_files import list_weights, step_dir
from art_local.managed_child import ManagedChild
from art_local.process import python_module

if TYPE_CHECKING:
    from collections.abc import Mapping

    from art_local.checkpoint_files import WeightsFile
    from art_local.inference_choice import Engine
    from art_local.service_config import ServiceConfig
    from art_local.vllm_server import VllmServer


_MODULES: dict[Engine, str] = {
    "embedded": "art_local.server",
    "vllm": "art_local.vllm_gateway",
}


class InferenceServer:
    """The inference server of one model. It comes back on the same port with the same key after it died.

    Attributes:
        child: The process that users reach.
        vllm: The vLLM server behind it, where that is the engine; it is set before the first `serve`.
    """

    def __init__(self, config: ServiceConfig) -> None:
        self._config = config
        self.child = ManagedChild(
            python_module(_MODULES[config.engine]),
            f"inference server of model {config.model_name!r}",
            InferenceError,
            config.start_timeout_s,
        )
        self._host = "127.0.0.1"
        self._port = 0  # the first start takes any free port, later ones the same again
        self._api_key = secrets.token_urlsafe(32)
        self.vllm: VllmServer | None = None
        self._vllm_starts = 0  # as of the start of the process in front of it
        # What the running server serves.
        self._served: dict[int, WeightsFile] = {}
        self._latest: int | None = None

    @property
    def base_url(self) -> str:
        """Address to give to an OpenAI client."""
        return f"http://{self._host}:{self._port}/v1"

    @property
    def api_key(self) -> str:
        """Key to give to an OpenAI client."""
        return self._api_key

    def failure(self) -> str | None:
        """Return None while it runs or was never started, else how it ended."""
        return (self.vllm.failure() if self.vllm is not None else None) or self.child.failure()

    def listen_at(self, args: Mapping[str, Any]) -> None:
        """Take host, port and api_key, where they are given."""
        if not self.child.is_up:
            self._host = args.get("host") or self._host
            self._port = int(args.get("port") or self._port)
            self._api_key = str(args.get("api_key") or self._api_key)

    async def serve(self, latest: int) -> None:
        """Be up and serve every checkpoint there is, `latest` as the latest.

        What an earlier call missed, because it failed or was cancelled, is made good.

        Raises:
            InferenceError: The server did not come up, or refused a checkpoint.
        """
        await self._ensure_vllm()
        weights = await run_blocking(list_weights, self._config.checkpoints)

        def config() -> dict[str, Any]:
            self._served, self._latest = dict(weights), latest
            return self._server_config()

        await self.child.ensure(config, self._take_port)
        for step, file in weights.items():
            if self._served.get(step) != file or (step == latest != self._latest):
                try:
                    await self._load(step, is_latest=step == latest)
                except InferenceError:
                    if not await self.child.has_ended():
                        raise
                    # It died in between. A new one reads all of them as it starts.
                    await self.child.ensure(config, self._take_port)
                    return
                self._served[step] = file
        self._latest = latest

    async def _ensure_vllm(self) -> None:
        if self.vllm is not None:
            await self.vllm.ensure()
            if self._config.sleeps_while_training:
                await self.vllm.wake()  # if who sent it to sleep was interrupted
            if self.child.is_up and self.vllm.starts != self._vllm_starts:
                self.child.end_hung()  # what it has loaded is gone with the vLLM of before
            self._vllm_starts = self.vllm.starts

    def _take_port(self, ready: dict[str, Any]) -> None:
        self._port = ready["port"]

    def _server_config(self) -> dict[str, Any]:
        config = self._config
        return {
            **self._engine_config(),
            "model_name": config.model_name,
            "base_model": config.worker.base_model,
            "base_model_name": config.base_model_name,
            "host": self._host,
            "port": self._port,
            "api_key": self._api_key,
            "adapters": [
                {"name": self._adapter_name(step), "path": str(step_dir(config.checkpoints, step))}
                for step in self._served
            ],
            "latest": None if self._latest is None else self._adapter_name(self._latest),
            "max_loaded_adapters": config.max_loaded_adapters,
            "drain_s": config.drain_s,
        }

    def _engine_config(self) -> dict[str, Any]:
        if self.vllm is not None:
            # No name that an earlier process gave may be used again.
            return {"socket": str(self.vllm.socket), "adapter_prefix": secrets.token_hex(4)}
        return {"device": self._config.worker.device, "threads": self._config.worker.threads}

    def _adapter_name(self, step: int) -> str:
        return f"{self._config.model_name}@{step}"

    async def withdraw(self, step: int) -> None:
        """Stop serving a checkpoint; new requests for it get a 404 from now on.

        Raises:
            InferenceError: The server refused.
        """
        if not self.child.is_up:
            return
        try:
            await self._admin("unload_lora_adapter", {"lora_name": self._adapter_name(step)})
        except InferenceError:
            if not await self.child.has_ended():
                raise
        self._served.pop(step, None)

    async def sleep(self) -> None:
        """Let new requests wait, give those in flight time to end, and free the GPU for something else.

        Raises:
            InferenceError: A server refused, or does not answer.
        """
        if self.vllm is not None and self.child.is_up:
            await self._admin("sleep", {})
            await self.vllm.sleep()

    async def wake(self) -> None:
        """Answer again, those who waited first; harmless while awake.

        Raises:
            InferenceError: A server refused, or does not answer.
        """
        if self.vllm is not None:
            try:
                await self.vllm.wake()
            finally:
                if self.child.is_up:
                    await self._admin("wake_up", {})

    async def _load(self, step: int, *, is_latest: bool) -> None:
        body = {
            "lora_name": self._adapter_name(step),
            "lora_path": str(step_dir(self._config.checkpoints, step)),
            "latest": is_latest,
        }
        await self._admin("load_lora_adapter", body)

    async def _admin(self, route: str, body: dict[str, Any]) -> None:
        # It may have to wait for requests in flight; beyond that a silent server counts as hung.
        timeout_s = self._config.drain_s + self._config.start_timeout_s
        # trust_env=False: the way to our own child never leads over a proxy.
        async with httpx.AsyncClient(timeout=timeout_s, trust_env=False) as client:
            try:
                response = await client.post(
                    f"{self.base_url}/{route}",
                    json=body,
                    headers={"Authorization": f"Bearer {self.api_key}"},
                )
            except httpx.HTTPError as error:
                if isinstance(error, httpx.TimeoutException):
                    self.child.end_hung()
                raise InferenceError(
                    f"{_spelled(route, body)}: {type(error).__name__}: {error}; "
                    f"{self.child.failure() or 'the server runs but does not answer'}"
                ) from error
        gone = route == "unload_lora_adapter" and response.status_code == httpx.codes.NOT_FOUND
        if response.is_error and not gone:
            raise InferenceError(
                f"the inference server refused {_spelled(route, body)}: {response.text}"
            )


def _spelled(route: str, body: Mapping[str, Any]) -> str:
    return " of ".join([route, *filter(None, [body.get("lora_name")])])
