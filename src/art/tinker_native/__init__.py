"""Upstream's spelling of the Tinker adapter: `from art.tinker_native import TinkerNativeBackend`."""

from __future__ import annotations

from typing import Any

__all__ = ["TinkerNativeBackend"]


def __getattr__(name: str) -> Any:
    from art.registry import load_attribute

    return load_attribute(__name__, name, "TinkerNativeBackend", "tinker_native")
