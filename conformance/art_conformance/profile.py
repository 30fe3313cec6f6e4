"""How much is tried: the time that a run may take decides, so that slow backends are tried less often."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Profile:
    """How much is tried.

    Attributes:
        name: Its name on the command line.
        examples: Sequences of calls that the state machine tries.
        steps: Most calls in a sequence.
        budget_s: Seconds that the state machine may plan for; a slow backend gets fewer sequences, at least one.
        shrinks: Whether a shorter sequence is looked for where one fails.
    """

    name: str
    examples: int
    steps: int
    budget_s: float
    shrinks: bool


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("quick", examples=8, steps=12, budget_s=8.0, shrinks=False),
        Profile("ci", examples=60, steps=16, budget_s=30.0, shrinks=True),
        Profile("nightly", examples=400, steps=25, budget_s=900.0, shrinks=True),
    )
}
