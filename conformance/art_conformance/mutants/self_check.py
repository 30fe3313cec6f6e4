"""`--self-check`: the suite passes the reference, and catches every broken adapter that it knows."""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from art_conformance.checks import ALL
from art_conformance.instruments.process_state import process_state, restore
from art_conformance.mutants.catalogue import MUTANTS
from art_conformance.profile import PROFILES
from art_conformance.reference import adapter as reference
from art_conformance.session import Session
from art_conformance.verdict import Verdict

if TYPE_CHECKING:
    from art_conformance.mutants import Mutant

_QUICK = PROFILES["quick"]
_REFERENCE_TARGET = "art_conformance.reference:adapter"


@dataclass
class Kills:
    """Which checks failed for a mutant.

    Attributes:
        mutant: The mutant.
        failed: Ids of the checks that failed, of those that were run.
        survived: Ids of the checks that must fail for it, and did not.
    """

    mutant: Mutant
    failed: list[str] = field(default_factory=list)
    survived: list[str] = field(default_factory=list)


def self_check(*, every_check: bool = False, seed: int = 0) -> int:
    """Check the suite, print what came of it, and return the exit status.

    Args:
        every_check: Run every check on every mutant, not only those that must fail for it.
        seed: Of all random choices.
    """
    false_alarms = check_reference(seed)
    for line in false_alarms:
        print(f"FALSE ALARM on the reference: {line}")
    kills = [try_mutant(mutant, every_check=every_check, seed=seed) for mutant in MUTANTS]
    print(kill_table(kills))
    survivors = [kill for kill in kills if kill.survived]
    for kill in survivors:
        print(
            f"SURVIVED {kill.mutant.name}: {', '.join(kill.survived)} did not fail: {kill.mutant.fault}"
        )
    idle = idle_checks()
    for id_ in idle:
        print(f"IDLE {id_}: no mutant is there for it, and it is not marked redundant")
    is_good = not (false_alarms or survivors or idle)
    killed = len(kills) - len(survivors)
    print(
        f"{killed} of {len(kills)} mutants killed; {'the suite holds' if is_good else 'the suite is broken'}"
    )
    return 0 if is_good else 1


def check_reference(seed: int = 0) -> list[str]:
    """Run everything on the reference, and return what did not pass."""
    with Session(reference, profile=_QUICK, seed=seed, target=_REFERENCE_TARGET) as session:
        results = [session.run(entry.id) for entry in session.manifest]
    return [
        f"{result.id} {result.verdict} {result.reason}"
        for result in results
        if result.verdict is not Verdict.PASS
    ]


def try_mutant(mutant: Mutant, *, every_check: bool = False, seed: int = 0) -> Kills:
    """Run the checks that must fail for a mutant, or all of them."""
    kills = Kills(mutant)
    target = f"{mutant.make_backend.__module__}:{mutant.name}.adapter"
    before = process_state()
    try:
        with (
            tempfile.TemporaryDirectory() as elsewhere,
            contextlib.chdir(elsewhere),  # some of them leave files where they stand
            Session(mutant.adapter, profile=_QUICK, seed=seed, target=target) as session,
        ):
            ids = [entry.id for entry in session.manifest]
            for id_ in ids if every_check else mutant.killed_by:
                if session.run(id_).verdict is Verdict.FAIL:
                    kills.failed.append(id_)
    finally:
        restore(before)  # only the check that watches it puts back what a mutant has changed
    kills.survived = [id_ for id_ in mutant.killed_by if id_ not in kills.failed]
    return kills


def idle_checks() -> list[str]:
    """Return the checks that no mutant is there for, and that are not marked redundant."""
    busy = {id_ for mutant in MUTANTS for id_ in mutant.killed_by}
    return [check.id for check in ALL if check.id not in busy and check.redundant is None]


def kill_table(kills: list[Kills]) -> str:
    """Return which mutant was killed by what, as a Markdown table."""
    rows = [
        f"| {kill.mutant.name} | {kill.mutant.fault} | {', '.join(kill.failed) or 'nothing'} |"
        for kill in kills
    ]
    return "\n".join(["| mutant | fault | killed by |", "|---|---|---|", *rows])
