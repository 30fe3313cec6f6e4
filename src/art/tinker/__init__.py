"""Upstream's spelling of the Tinker adapter: `from art.tinker import TinkerBackend`."""

from __future__ import annotations

from typing import Any

__all__ = ["TinkerBackend"]


def __getattr__(name: str) -> Any:
    from art.registry import load_attribute

    return load_attribute(__name__, name, "TinkerBackend", "tinker")
