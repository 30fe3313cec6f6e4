"""A look inside the reference, at the files it keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import art
from art_conformance.adapter import Probe, Received
from art_conformance.reference import checkpoints

if TYPE_CHECKING:
    from art_conformance.adapter import AnyModel, Fault
    from art_conformance.reference.backend import ReferenceBackend


class ReferenceProbe(Probe):
    """Sees everything, without asking the backend's own methods."""

    async def checkpoint_steps(self, model: AnyModel) -> set[int]:
        """Look at the disk."""
        return set(checkpoints.steps(art.checkpoints_dir(model)))

    async def received(self, model: AnyModel) -> list[Received]:
        """Return what reached the trainer."""
        return self._reference.sent.get((model.project, model.name), [])

    async def weights(self, model: AnyModel, step: int) -> object:
        """Return the one number."""
        return checkpoints.load(art.checkpoints_dir(model), step)

    async def fail_next(self, fault: Fault) -> None:
        """Tell the backend where to fail."""
        self._reference.fault = fault

    @property
    def _reference(self) -> ReferenceBackend:
        return cast("ReferenceBackend", self.backend)
