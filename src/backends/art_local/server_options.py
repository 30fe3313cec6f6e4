"""Options of the inference server, read from upstream's option names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from art_local.option_rules import warn_once

if TYPE_CHECKING:
    from collections.abc import Mapping

_GATEWAY = ("host", "port", "api_key")


@dataclass(frozen=True)
class ServerOptions:
    """Upstream's options of the inference server, by who they speak to.

    Attributes:
        gateway: host, port and api_key of what users reach, where they are given.
        server_args: The options of vLLM's OpenAI server.
        engine_args: The options of vLLM's engine.
    """

    gateway: dict[str, Any] = field(default_factory=dict, repr=False)
    server_args: dict[str, Any] = field(default_factory=dict)
    engine_args: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, options: Mapping[str, Any] | None) -> ServerOptions:
        """Sort the options; one warning for each that speaks to nobody here."""
        given = dict(options or {})
        args = dict(given.pop("server_args", None) or {})
        gateway = {name: args.pop(name) for name in _GATEWAY if name in args}
        engine_args = dict(given.pop("engine_args", None) or {})
        for name in given:
            warn_once(name)
        return cls(gateway, args, engine_args)

    def warn_without_vllm(self) -> None:
        """Say, once for each, that the options of vLLM have no effect."""
        for name in self.server_args:
            warn_once(f"server_args.{name}")
        for name in self.engine_args:
            warn_once(f"engine_args.{name}")
