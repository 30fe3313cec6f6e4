from __future__ import annotations

import re
from pathlib import Path

from art.backend import __doc__ as contract
from art_conformance.checks import ALL
from art_conformance.manifest import read_manifest
from art_conformance.mutants.catalogue import MUTANTS
from art_conformance.mutants.self_check import idle_checks
from scripts.conformance_docs import DOCS, pages


def test_the_manifest_lists_every_check_in_order() -> None:
    """The shipped manifest is that of the code; `python -m art_conformance --write-manifest` writes it."""
    assert [entry.id for entry in read_manifest()] == [check.id for check in ALL]


def test_ids_are_unique() -> None:
    """No two checks, and no two mutants, have the same name."""
    for names in ([check.id for check in ALL], [mutant.name for mutant in MUTANTS]):
        assert len(names) == len(set(names))


def test_every_check_can_be_explained() -> None:
    """A check has a rule of one sentence, a cause, and an id of its group and a number."""
    documented = set(pages())
    for check in ALL:
        assert re.fullmatch(r"[A-Z]+-\d\d", check.id), check.id
        assert check.rule.endswith("."), check.id
        assert check.cause, check.id
        assert check.cause[-1] != ".", check.id
        assert check.anchor.partition("#")[0].removeprefix("docs/conformance/") in documented


def test_every_clause_of_the_contract_has_a_check() -> None:
    """Each clause in `art.backend` is proved by at least one check."""
    clauses = set(re.findall(r"^- ([TD]\d):", contract or "", re.MULTILINE))
    assert clauses
    assert clauses <= {clause for check in ALL for clause in check.clause.split(", ")}


def test_every_mutant_names_checks_that_exist() -> None:
    """What a mutant is to be killed by exists, and every check has a mutant or a reason to have none."""
    ids = {check.id for check in ALL}
    for mutant in MUTANTS:
        assert mutant.killed_by, mutant.name
        assert set(mutant.killed_by) <= ids, mutant.name
        assert mutant.fault.endswith("."), mutant.name
    assert idle_checks() == []


def test_the_pages_are_those_of_the_code() -> None:
    """docs/conformance is what `python -m scripts.conformance_docs` writes."""
    written = {path.name: path.read_text() for path in Path(DOCS).glob("*.md")}
    assert written == pages()
