"""Upstream's spelling of the local adapter: `from art.local import LocalBackend`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from art_local import LocalBackend

__all__ = ["LocalBackend"]


def __getattr__(name: str) -> Any:
    from art.registry import load_attribute

    return load_attribute(__name__, name, "LocalBackend", "local")
