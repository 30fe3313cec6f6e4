"""What a check is, and how one is written.

```python
@check("DEL-01", clause="D1", cause="the list is taken for the steps to delete", level=Level.FULL)
async def exactly_the_kept_steps_survive(stage: Stage) -> None:
    \"\"\"Exactly `steps_to_keep` survive a deletion.\"\"\"
    ...
```

The docstring's first sentence is the rule. A check returns where the rule holds, and raises `CheckFailed` (by
`expect`) where it does not.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from art_conformance.verdict import Level

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from art_conformance.stage import Stage

    CheckFunction: TypeAlias = Callable[[Stage], Awaitable[None]]

GUARDS_THE_FRONTEND = "it guards the frontend: an adapter that breaks it breaks other checks first"
"""`redundant` of a check that fails by the frontend's fault, or where much else is broken."""

FRONTEND_AT_FAULT = (
    "where nothing else fails, the frontend is at fault, not the adapter: please report it"
)
"""`cause` of such a check."""


@dataclass(frozen=True)
class Check:
    """One rule of the contract and the code that tries it.

    Attributes:
        id: Group and number, "DEL-01"; never used again for another rule.
        clause: The numbered clause of the contract that it proves ("T1", "D5"), or the part of the frontend's
            contract that it guards ("steps", "books", "names").
        rule: One sentence.
        detail: More about it, for the documentation; may be empty.
        cause: What usually is wrong where it fails.
        level: The least level that it counts for.
        needs: Optional capabilities, by their names in `art.backend.Capabilities`; without them it is declined.
        renews: Whether it leaves the backend in a state that no other check should see.
        is_long: Whether the profile's budget comes on top of the adapter's time for a check.
        redundant: Why no broken adapter of the self-check is there for it alone; None where one is.
        run: The code.
    """

    id: str
    clause: str
    rule: str
    detail: str
    cause: str
    level: Level
    needs: tuple[str, ...]
    renews: bool
    is_long: bool
    redundant: str | None
    run: CheckFunction

    @property
    def group(self) -> str:
        """The part of the id before the number."""
        return self.id.rpartition("-")[0]

    @property
    def anchor(self) -> str:
        """Where the documentation explains it."""
        return f"docs/conformance/{self.group.lower()}.md#{self.id.lower()}"


def check(
    id: str,  # noqa: A002 - the field's name
    *,
    clause: str,
    cause: str,
    level: Level = Level.CORE,
    needs: tuple[str, ...] = (),
    renews: bool = False,
    is_long: bool = False,
    redundant: str | None = None,
) -> Callable[[CheckFunction], Check]:
    """Make a check of a function; see `Check`."""

    def decorate(function: CheckFunction) -> Check:
        rule, _, detail = inspect.cleandoc(function.__doc__ or "").partition("\n\n")
        return Check(
            id=id,
            clause=clause,
            rule=" ".join(rule.split()),
            detail=detail,
            cause=cause,
            level=level,
            needs=needs,
            renews=renews,
            is_long=is_long,
            redundant=redundant,
            run=function,
        )

    return decorate
