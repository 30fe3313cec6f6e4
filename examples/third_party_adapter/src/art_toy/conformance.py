"""What the conformance suite is told about ToyBackend: `art conformance art_toy.conformance:adapter`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import art
from art_conformance import Adapter, Probe
from art_toy.backend import ToyBackend

if TYPE_CHECKING:
    from art import TrainableModel


class ToyProbe(Probe):
    """Looks at the disk, without asking the backend."""

    async def checkpoint_steps(self, model: TrainableModel[Any, Any]) -> set[int]:
        """Return the directories that hold a whole checkpoint. Step 0 has none: it is the empty table."""
        found = art.checkpoints_dir(model).glob("[0-9]*/words.json")
        return {int(path.parent.name) for path in found}

    async def weights(self, model: TrainableModel[Any, Any], step: int) -> object:
        """Return the table as it is written."""
        path = art.checkpoints_dir(model) / f"{step:04d}" / "words.json"
        return path.read_text() if path.exists() else "{}"


adapter = Adapter(
    ToyBackend,
    probe=ToyProbe,
    declines={
        "inference": "a table of words says nothing",
        "inference_name": "no inference",
        "inference_health": "no inference",
        "default_base_path": "checkpoints lie with the model's books",
        "register": "nothing to prepare",
        "close": "nothing to release",
        "sft": "not written",
    },
)
