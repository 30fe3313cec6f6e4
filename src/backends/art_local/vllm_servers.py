"""The vLLM servers that a backend started itself."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from art_local.vllm_options import lora_rank_of_vllm
from art_local.vllm_server import VllmServer

if TYPE_CHECKING:
    import os

    from art_local.config import WorkerSettings
    from art_local.server_options import ServerOptions


class VllmServers:
    """One vLLM server for each base model and set of options; models that agree in both share it.

    Args:
        python: The interpreter that has vLLM; by default this one.
        threads: Threads of a server on CPUs; by default VllmServer's own.
        start_timeout_s: How long a server may take to come up.
    """

    def __init__(
        self,
        python: str | os.PathLike[str] | None,
        threads: int | None,
        start_timeout_s: float,
    ) -> None:
        self._python = python
        self._threads = threads
        self._start_timeout_s = start_timeout_s
        self._servers: dict[str, VllmServer] = {}
        self._owners: set[str] = set()

    def has_others(self, owner: str) -> bool:
        """Return whether there is a server of somebody else."""
        return bool(self._owners - {owner})

    def get(self, settings: WorkerSettings, options: ServerOptions, *, owner: str) -> VllmServer:
        """Return the server for a model, made but not started on first use.

        Args:
            settings: The model's base model, adapter rank and device.
            options: What the user asks of vLLM.
            owner: Models of different owners share no server.

        Raises:
            ConfigurationError: An option is not the user's to set.
        """
        self._owners.add(owner)
        rank = lora_rank_of_vllm(settings.lora.r)
        key = json.dumps(
            [owner, settings.base_model, rank, options.engine_args, options.server_args],
            sort_keys=True,
            default=repr,
        )
        if key not in self._servers:
            server = VllmServer(
                settings.base_model,
                python=self._python,
                device=settings.device,
                threads=self._threads,
                engine_args=options.engine_args,
                server_args=options.server_args,
                max_lora_rank=rank,
                start_timeout_s=self._start_timeout_s,
            )
            # Not an assignment: another thread may have made one meanwhile.
            return self._servers.setdefault(key, server)
        return self._servers[key]

    async def close(self) -> None:
        """End them all. Repeatable."""
        servers, self._servers, self._owners = list(self._servers.values()), {}, set()
        await asyncio.gather(*(server.close() for server in servers))

    def kill(self) -> None:
        """End them all, from code that cannot await."""
        for server in self._servers.values():
            server.kill()
        self._servers = {}
