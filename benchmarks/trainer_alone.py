"""Makes the trainer importable where there is torch, transformers and peft, and none of the frontend's dependencies.

A GPU machine without a network may have no more, and the trainer's rooms need no more: only the `__init__` of
their package, which offers the whole backend, and the module that `TrainingSequence` stands in do.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from types import ModuleType

from benchmarks.contestants import ROOT

_SOURCES = (ROOT / "src", ROOT / "src" / "backends")
_FRONTEND = ("pydantic", "openai", "polars")


@dataclass
class TrainingSequence:
    """Stands in for the kit's class of that name, with the same fields."""

    token_ids: list[int]
    trained: list[bool]
    logprobs: list[float]
    temperatures: list[float]
    advantage: float
    num_masked: int = 0


def make_importable() -> None:
    """Put this checkout's sources on the path; where the frontend cannot be loaded, stand in for what needs it."""
    sys.path[:0] = [str(source) for source in _SOURCES]
    if all(importlib.util.find_spec(name) for name in _FRONTEND):
        return
    package = ModuleType("art_local")
    package.__path__ = [str(_SOURCES[1] / "art_local")]
    sys.modules["art_local"] = package
    sequences = ModuleType("art.adapter_kit.sequences")
    sequences.__dict__["TrainingSequence"] = TrainingSequence
    sys.modules["art.adapter_kit.sequences"] = sequences
