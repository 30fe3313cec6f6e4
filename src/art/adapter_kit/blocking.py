"""Blocking work off the event loop, all or nothing: for adapters what `art.background` is for the frontend."""

from __future__ import annotations

from art.background import run_blocking

__all__ = ["run_blocking"]
