"""Sessions with checks of a test's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from art_conformance.check import Check, check
from art_conformance.manifest import Entry
from art_conformance.profile import PROFILES
from art_conformance.session import Session

if TYPE_CHECKING:
    from art_conformance.adapter import Adapter
    from art_conformance.check import CheckFunction
    from art_conformance.verdict import Result


class OwnChecks(Session):
    """Trusts the checks of the tests."""

    _home = Path(__file__).parent


def make_check(function: CheckFunction, id_: str = "OWN-01", **options: Any) -> Check:
    return check(id_, clause="T1", cause="a test wants it so", **options)(function)


def session(adapter: Adapter, *checks: Check, **options: Any) -> Session:
    options.setdefault("manifest", [Entry(item.id, "1.0") for item in checks])
    return OwnChecks(adapter, profile=PROFILES["quick"], checks=checks, **options)


def result_of(adapter: Adapter, function: CheckFunction, **options: Any) -> Result:
    """Return what comes of one check."""
    with session(adapter, make_check(function, **options)) as opened:
        return opened.run("OWN-01")
