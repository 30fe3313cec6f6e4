"""The suite on the backends of this project, and on itself."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from art_conformance.adapter import load_adapter
from art_conformance.mutants.catalogue import MUTANTS
from art_conformance.mutants.self_check import try_mutant
from art_conformance.profile import PROFILES
from art_conformance.session import Session
from art_conformance.verdict import Level

if TYPE_CHECKING:
    from art_conformance.mutants import Mutant
    from art_conformance.report import Report

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(600)]


def certify(target: str, profile: str = "quick", seed: int = 0) -> Report:
    """Run every check, and return what came of it."""
    with Session(
        load_adapter(target), profile=PROFILES[profile], seed=seed, target=target
    ) as session:
        for entry in session.manifest:
            session.run(entry.id)
        return session.report(target)


SEEDS = range(20 if os.environ.get("ART_CAMPAIGN") == "full" else 2)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_reference_passes_every_check(seed: int) -> None:
    """The reference adapter passes all with any seed, with nothing declined or unseen."""
    report = certify("art_conformance.reference:adapter", seed=seed)
    assert list(report.counts) == ["PASS"], report.summary()


def test_the_in_memory_backend_is_certified() -> None:
    """`art.testing.InMemoryBackend` with every capability that it has reaches the core level, and more with a probe."""
    report = certify("bundled:memory")
    assert report.level is Level.CORE, report.summary()


@pytest.mark.local
def test_the_local_backend_is_certified() -> None:
    """`LocalBackend` trains and serves the built-in model, and reaches the full level."""
    report = certify("bundled:local", profile="ci")
    assert report.level is Level.FULL, report.summary()


@pytest.mark.local
@pytest.mark.vllm
@pytest.mark.xdist_group("vllm")
@pytest.mark.timeout(900)
def test_the_local_backend_is_certified_with_vllm() -> None:
    """With vLLM in place of the embedded engine it reaches the full level as well."""
    report = certify("bundled:local_vllm", profile="ci")
    assert report.level is Level.FULL, report.summary()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_broken_adapter_is_caught(mutant: Mutant) -> None:
    """A mutant fails each check that is there for it."""
    assert try_mutant(mutant).survived == []
