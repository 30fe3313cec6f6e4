"""The parent's side of a model's inference server; `server` is the child."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import httpx

from art.errors import InferenceError
from art_local.checkpoint_files import list_steps, step_dir
from art_local.process import ChildProcess

if TYPE_CHECKING:
    from art import dev
    from art_local.service_config import ServiceConfig

_ADMIN_TIMEOUT_S = 60.0


class InferenceServer:
    """The inference server of one model. It comes back on the same port with the same key after it died."""

    def __init__(self, config: ServiceConfig) -> None:
        self._config = config
        self._process: ChildProcess | None = None
        self._host = "127.0.0.1"
        self._port = 0  # the first start takes any free port, later ones the same again
        self._api_key = secrets.token_urlsafe(32)
        self._ready = False

    @property
    def base_url(self) -> str:
        """Address to give to an OpenAI client."""
        return f"http://{self._host}:{self._port}/v1"

    @property
    def api_key(self) -> str:
        """Key to give to an OpenAI client."""
        return self._api_key

    def listen_at(self, options: dev.OpenAIServerConfig | None) -> None:
        """Take host, port and key from upstream's server options, where they are given."""
        args = (options or {}).get("server_args", {})
        if self._ready or not args:
            return
        self._host = args.get("host") or self._host
        self._port = int(args.get("port") or self._port)
        self._api_key = str(args.get("api_key") or self._api_key)

    def spawn(self) -> None:
        """Start the process, so that its imports run while something else is waited for."""
        if self._process is None:
            self._process = ChildProcess(
                "art_local.server", f"inference server of model {self._config.model_name!r}"
            )

    async def ensure(self, latest: int) -> None:
        """Be up and serve every checkpoint there is, `latest` as the latest.

        Raises:
            InferenceError: It did not come up; with the tail of its log.
        """
        if self._process is not None and self._process.failure() is not None:
            await self.stop()
        if self._ready:
            return
        self.spawn()
        assert self._process is not None
        self._process.send(self._server_config(latest))
        try:
            event = await self._process.next_event(self._config.start_timeout_s)
        except TimeoutError:
            tail = self._process.tail()
            await self.stop()
            raise InferenceError(
                f"the inference server of model {self._config.model_name!r} was not ready within "
                f"{self._config.start_timeout_s:g} s; the end of its log:\n{tail}"
            ) from None
        if event["event"] != "ready":
            message = event.get("message") or await self._why_it_ended()
            await self.stop()
            raise InferenceError(message)
        self._port = event["port"]
        self._ready = True

    async def _why_it_ended(self) -> str:
        assert self._process is not None
        await self._process.stop()
        return self._process.failure() or "it ended"

    def _server_config(self, latest: int) -> dict[str, Any]:
        config = self._config
        return {
            "model_name": config.model_name,
            "base_model": config.worker.base_model,
            "base_model_name": config.base_model_name,
            "host": self._host,
            "port": self._port,
            "api_key": self._api_key,
            "adapters": [
                {"name": self._adapter_name(step), "path": str(step_dir(config.checkpoints, step))}
                for step in list_steps(config.checkpoints)
            ],
            "latest": self._adapter_name(latest),
            "max_loaded_adapters": config.max_loaded_adapters,
            "drain_s": config.drain_s,
            "device": config.worker.device,
            "threads": config.worker.threads,
        }

    def _adapter_name(self, step: int) -> str:
        return f"{self._config.model_name}@{step}"

    def failure(self) -> str | None:
        """Return None while it is up or was never started, else how it ended."""
        return self._process.failure() if self._process is not None else None

    async def serve_latest(self, step: int) -> None:
        """Serve a new checkpoint, as the latest.

        Raises:
            InferenceError: The server refused it or is gone.
        """
        if self._process is None:
            return  # nobody asked for inference yet
        if self.failure() is not None:
            await self.ensure(step)
            return
        await self._admin(
            "load_lora_adapter",
            {
                "lora_name": self._adapter_name(step),
                "lora_path": str(step_dir(self._config.checkpoints, step)),
                "latest": True,
            },
        )

    async def withdraw(self, step: int) -> None:
        """Stop serving a checkpoint; new requests for it get a 404 from now on."""
        if self._ready and self.failure() is None:
            await self._admin("unload_lora_adapter", {"lora_name": self._adapter_name(step)})

    async def _admin(self, route: str, body: dict[str, Any]) -> None:
        # trust_env=False: the way to our own child never leads over a proxy.
        async with httpx.AsyncClient(timeout=_ADMIN_TIMEOUT_S, trust_env=False) as client:
            try:
                response = await client.post(
                    f"{self.base_url}/{route}",
                    json=body,
                    headers={"Authorization": f"Bearer {self.api_key}"},
                )
            except httpx.HTTPError as error:
                raise InferenceError(
                    f"{route} of {body['lora_name']}: {type(error).__name__}: {error}; "
                    f"{self.failure() or 'the server runs but does not answer'}"
                ) from error
        gone = route == "unload_lora_adapter" and response.status_code == httpx.codes.NOT_FOUND
        if response.is_error and not gone:
            raise InferenceError(
                f"the inference server refused {route} of {body['lora_name']}: {response.text}"
            )

    async def stop(self) -> None:
        """End the process. Repeatable."""
        self._ready = False
        if self._process is not None:
            process, self._process = self._process, None
            await process.stop()

    def kill(self) -> None:
        """End the process at once, from code that cannot wait. Repeatable."""
        self._ready = False
        if self._process is not None:
            process, self._process = self._process, None
            process.kill()
