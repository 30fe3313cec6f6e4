"""What can come of a check, and of a whole run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """What came of one check. There is no skipping."""

    PASS = "PASS"  # noqa: S105 - no password
    """The rule holds."""
    FAIL = "FAIL"
    """The rule is broken, or the adapter hung."""
    DECLINED = "DECLINED"
    """The check is about an optional capability that the adapter says it does not have."""
    UNOBSERVABLE = "UNOBSERVABLE"
    """The adapter's probe does not show what the check would have to see."""
    XFAIL = "XFAIL"
    """It fails, and the adapter lists it as a known failure. Should it pass, the verdict is FAIL."""
    ERROR = "ERROR"
    """The check could not be run, or its result cannot be trusted."""


class Level(StrEnum):
    """How much of the contract a check is about, and a certificate vouches for."""

    CORE = "core"
    """The two methods, seen from outside."""
    INFERENCE = "core+inference"
    """The endpoint as well."""
    FULL = "full"
    """Also what only a listing of checkpoints, a step, or a probe can show."""

    @property
    def rank(self) -> int:
        """Its place among the levels, the least one first."""
        return list(Level).index(self)


@dataclass(frozen=True)
class Result:
    """What came of one check.

    Attributes:
        id: The check.
        verdict: What came of it.
        reason: Why; empty where it passed.
        seconds: How long it took.
        is_new: It is new in this version of the suite: a failure only warns.
        lacks: The capabilities without which it was declined.
    """

    id: str
    verdict: Verdict
    reason: str = ""
    seconds: float = 0.0
    is_new: bool = False
    lacks: tuple[str, ...] = ()

    @property
    def is_broken(self) -> bool:
        """Whether it stands in the way of any certificate."""
        return self.verdict in {Verdict.FAIL, Verdict.ERROR} and not self.is_new
