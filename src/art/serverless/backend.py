"""Upstream's spelling of the serverless adapter: `from art.serverless.backend import ServerlessBackend`."""

from __future__ import annotations

from typing import Any

__all__ = ["ServerlessBackend"]  # noqa: F822 - found by `__getattr__`


def __getattr__(name: str) -> Any:
    from art.registry import load_attribute

    return load_attribute(__name__, name, "ServerlessBackend", "serverless")
