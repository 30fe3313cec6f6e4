"""Mutants of the types: values that a script may hand over, and the adapter does not take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from art_conformance.mutants import mutant
from art_conformance.reference import ReferenceBackend

if TYPE_CHECKING:
    import art


@mutant(killed_by=("TYPES-03",))
class InsistsOnFloats(ReferenceBackend):
    """A reward that is an int or a bool is refused."""

    def _trainable(self, groups: list[art.TrajectoryGroup]) -> list[art.TrajectoryGroup]:
        for reward in (t.reward for group in groups for t in group.trajectories):
            if type(reward) is not float:
                raise TypeError(f"a reward is a {type(reward).__name__}")
        return super()._trainable(groups)
