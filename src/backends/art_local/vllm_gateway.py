"""The process in front of vLLM: `python -m art_local.vllm_gateway`; see `gateway_process`. Imports no torch.

Each model has its own, with its own key and names; the vLLM server behind them may be shared.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from art_local.gateway_process import GatewayConfig, run_gateway
from art_local.vllm_engine import VllmEngine

if TYPE_CHECKING:
    from collections.abc import Awaitable


@dataclass(frozen=True)
class VllmGatewayConfig(GatewayConfig):
    """What the parent sends.

    Attributes:
        socket: The unix socket of vLLM's server.
        adapter_prefix: Begins the names of this process's adapters there.
    """

    socket: str = ""
    adapter_prefix: str = ""


def _open(message: dict[str, Any]) -> tuple[VllmGatewayConfig, Awaitable[VllmEngine]]:
    config = VllmGatewayConfig(**message)
    return config, _connect(config)


async def _connect(config: VllmGatewayConfig) -> VllmEngine:
    return VllmEngine(
        config.socket,
        config.base_model,
        prefix=config.adapter_prefix,
        max_loaded=config.max_loaded_adapters,
    )


if __name__ == "__main__":
    sys.exit(run_gateway(_open))
