from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from art_conformance import Level, Verdict
from art_conformance.report import Report, make_report_directory
from art_conformance.verdict import Result
from tests.art_conformance.sessions import make_check

if TYPE_CHECKING:
    from pathlib import Path

    from art_conformance.stage import Stage


async def rule(stage: Stage) -> None:
    """The rule of the test."""


CHECKS = {
    item.id: item
    for item in (
        make_check(rule, "CORE-01"),
        make_check(rule, "CORE-02", needs=("close",)),
        make_check(rule, "INF-01", level=Level.INFERENCE, needs=("inference",)),
        make_check(rule, "FULL-01", level=Level.FULL),
        make_check(rule, "FULL-02", level=Level.FULL, needs=("listing",)),
        make_check(rule, "FULL-03", level=Level.FULL, needs=("sft",)),
    )
}


def report(**verdicts: Verdict) -> Report:
    """Return a report in which all pass but those named (CORE_01=Verdict.FAIL)."""
    given = {name.replace("_", "-"): verdict for name, verdict in verdicts.items()}
    results = [
        Result(id_, given[id_], "why", lacks=CHECKS[id_].needs)
        if id_ in given
        else Result(id_, Verdict.PASS)
        for id_ in CHECKS
    ]
    return Report("mine:adapter", "Mine", seed=7, profile="quick", results=results, checks=CHECKS)


@pytest.mark.parametrize(
    ("verdicts", "level"),
    [
        ({}, Level.FULL),
        ({"CORE_01": Verdict.FAIL}, None),
        ({"FULL_01": Verdict.FAIL}, None),
        ({"FULL_01": Verdict.ERROR}, None),
        ({"CORE_01": Verdict.XFAIL}, None),
        ({"INF_01": Verdict.XFAIL}, Level.CORE),
        ({"FULL_01": Verdict.XFAIL}, Level.INFERENCE),
        ({"CORE_02": Verdict.DECLINED}, Level.FULL),
        ({"INF_01": Verdict.DECLINED}, Level.CORE),
        ({"FULL_01": Verdict.UNOBSERVABLE}, Level.INFERENCE),
        ({"FULL_02": Verdict.DECLINED}, Level.INFERENCE),
        ({"FULL_03": Verdict.DECLINED}, Level.FULL),
        ({"CORE_01": Verdict.UNOBSERVABLE}, Level.INFERENCE),
    ],
)
def test_the_level_is_what_the_verdicts_allow(
    verdicts: dict[str, Verdict], level: Level | None
) -> None:
    """A failure allows no level; what is known to fail, declined or unseen only those that can do without it."""
    assert report(**verdicts).level == level


def test_a_capability_that_no_level_asks_for_costs_none() -> None:
    """A check that is declined for such a capability is no loss, though it needs one that is asked for as well."""
    check = make_check(
        rule, "INF-02", level=Level.INFERENCE, needs=("inference", "inference_health")
    )
    results = [Result("INF-02", Verdict.DECLINED, "why", lacks=("inference_health",))]
    told = Report("a:b", "B", seed=0, profile="quick", results=results, checks={"INF-02": check})
    assert told.level is Level.FULL


def test_a_report_without_results_certifies_nothing() -> None:
    """Zero checks are never green."""
    empty = Report("mine:adapter", "Mine", seed=0, profile="quick", results=[], checks=CHECKS)
    assert empty.level is None
    assert empty.badge()["message"] == "not certified"


def test_the_files_of_a_report_say_the_same(tmp_path: Path) -> None:
    """JSON, page and badge are written, and tell the level and each verdict."""
    written = report(INF_01=Verdict.DECLINED)
    make_report_directory(tmp_path / "out")
    written.write(tmp_path / "out")
    values: dict[str, Any] = json.loads((tmp_path / "out/conformance.json").read_text())
    badge = json.loads((tmp_path / "out/conformance-badge.json").read_text())
    page = (tmp_path / "out/conformance.md").read_text()
    assert (values["level"], values["seed"], values["adapter"]) == ("core", 7, "mine:adapter")
    assert values["counts"] == {"PASS": 5, "DECLINED": 1}
    assert [item["id"] for item in values["checks"]] == list(CHECKS)
    again = "python -m art_conformance mine:adapter --only INF-01 --seed 7 --profile quick"
    assert values["checks"][2]["repro"] == again
    assert badge == {
        "schemaVersion": 1,
        "label": "art backend",
        "message": "core",
        "color": "green",
    }
    assert "CERTIFIED at level core: 5 PASS, 1 DECLINED" in page
    assert "| INF-01 | T1 | The rule of the test. | DECLINED | why |" in page


def test_the_summary_explains_what_is_not_in_order_and_nothing_else() -> None:
    """A summary has a block for each failure and a line for each reason, and ends with the verdict."""
    text = report(CORE_01=Verdict.FAIL, FULL_01=Verdict.UNOBSERVABLE, INF_01=Verdict.DECLINED)
    lines = text.summary().splitlines()
    assert lines[0] == "FAIL CORE-01 (clause T1): The rule of the test."
    assert "  likely:   a test wants it so" in lines
    assert "UNOBSERVABLE FULL-01: why" in lines
    assert "DECLINED     INF-01: why" in lines
    assert lines[-2] == "NOT CERTIFIED: 3 PASS, 1 FAIL, 1 DECLINED, 1 UNOBSERVABLE"
    assert "CORE-02" not in text.summary()
