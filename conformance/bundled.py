"""The backends of this project, as the conformance suite is shown them: `make conformance ADAPTER=local`."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from art.testing import InMemoryBackend
from art_conformance import Adapter, Probe
from bundled_local import local, local_vllm

if TYPE_CHECKING:
    from art.backend import AnyTrainableModel


class MemoryProbe(Probe):
    """Looks into the dicts of InMemoryBackend."""

    async def checkpoint_steps(self, model: AnyTrainableModel) -> set[int]:
        """Return what was committed."""
        return set(self._memory.checkpoints.get((model.project, model.name), {0}))

    @property
    def _memory(self) -> InMemoryBackend:
        return cast("InMemoryBackend", self.backend)


def _restart(old: InMemoryBackend) -> InMemoryBackend:
    """Return what a new process would find, had the memory been a disk."""
    new = _make_memory()
    new.checkpoints = old.checkpoints
    return new


def _make_memory() -> InMemoryBackend:
    return InMemoryBackend.supporting("step", "listing", "inference_name", "close")


memory = Adapter(
    _make_memory,
    restart=_restart,
    probe=MemoryProbe,
    declines={
        "inference": "nothing answers",
        "inference_health": "nothing answers",
        "default_base_path": "nothing is written",
        "register": "nothing to prepare",
        "sft": "a fake for reinforcement learning",
    },
)

__all__ = ["local", "local_vllm", "memory"]
