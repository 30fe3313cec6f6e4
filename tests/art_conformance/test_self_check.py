from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from art_conformance.mutants import mutant, self_check
from art_conformance.mutants.self_check import try_mutant
from art_conformance.reference import ReferenceBackend

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from art_conformance.mutants import Mutant


class Harmless(ReferenceBackend):
    """Nothing is wrong with it."""


class UsesAReservedName(ReferenceBackend):
    """A metric has a name of the frontend."""

    async def _train_model(self, *args: Any) -> AsyncIterator[dict[str, float]]:
        async for event in super()._train_model(*args):
            yield {**event, "reward": 1.0}


HARMLESS = mutant(killed_by=("SHAPE-01",))(Harmless)
USES_A_RESERVED_NAME = mutant(killed_by=("YIELD-02",))(UsesAReservedName)


def test_a_mutant_that_a_check_misses_has_survived() -> None:
    """A mutant is killed by a check that fails for it, and survives one that does not."""
    assert try_mutant(USES_A_RESERVED_NAME).failed == ["YIELD-02"]
    assert try_mutant(USES_A_RESERVED_NAME).survived == []
    assert try_mutant(HARMLESS).survived == ["SHAPE-01"]


@pytest.mark.parametrize(
    ("mutants", "status", "told"),
    [
        ((USES_A_RESERVED_NAME,), 0, "1 of 1 mutants killed; the suite holds"),
        ((USES_A_RESERVED_NAME, HARMLESS), 1, "SURVIVED Harmless: SHAPE-01 did not fail"),
    ],
)
def test_the_self_check_fails_where_a_mutant_survives(
    mutants: tuple[Mutant, ...],
    status: int,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The status of `--self-check` is 1 where a mutant survives, and the survivor is named."""
    monkeypatch.setattr(self_check, "MUTANTS", mutants)
    monkeypatch.setattr(self_check, "ALL", ())
    monkeypatch.setattr(self_check, "check_reference", lambda _: [])
    assert self_check.self_check() == status
    assert told in capsys.readouterr().out


def test_the_self_check_fails_where_a_check_has_no_mutant(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A check that nothing is there for, and that gives no reason, is told as idle."""
    monkeypatch.setattr(self_check, "MUTANTS", ())
    monkeypatch.setattr(self_check, "check_reference", lambda _: [])
    assert self_check.self_check() == 1
    assert "IDLE SHAPE-01: no mutant is there for it" in capsys.readouterr().out


def test_a_false_alarm_fails_the_self_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A check that fails for the reference is told, and fails the self-check."""
    monkeypatch.setattr(self_check, "MUTANTS", ())
    monkeypatch.setattr(self_check, "ALL", ())
    monkeypatch.setattr(self_check, "check_reference", lambda _: ["DEL-01 FAIL why"])
    assert self_check.self_check() == 1
    assert "FALSE ALARM on the reference: DEL-01 FAIL why" in capsys.readouterr().out
