"""Upstream's spelling of the Tinker adapter: `from art.tinker_native.backend import TinkerNativeBackend`."""

from __future__ import annotations

from typing import Any

__all__ = ["TinkerNativeBackend"]  # noqa: F822 - found by `__getattr__`


def __getattr__(name: str) -> Any:
    from art.registry import load_attribute

    return load_attribute(__name__, name, "TinkerNativeBackend", "tinker_native")
