from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.profiles import chosen_profile, examples

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({}, "dev"),
        ({"CI": ""}, "dev"),
        ({"CI": "true"}, "ci"),
        ({"CI": "true", "HYPOTHESIS_PROFILE": "dev"}, "dev"),
        ({"HYPOTHESIS_PROFILE": "nightly"}, "nightly"),
    ],
)
def test_the_environment_chooses_the_profile(environment: dict[str, str], name: str) -> None:
    """A profile that is named wins over CI."""
    assert chosen_profile(environment) == name


@pytest.mark.parametrize("name", ["dev", "ci", "nightly"])
def test_no_profile_fails_a_test_for_its_time(name: str) -> None:
    """A slow machine fails no test, and only CI tries the same examples every time."""
    profile = settings.get_profile(name)
    assert profile.deadline is None
    assert HealthCheck.too_slow in profile.suppress_health_check
    assert profile.derandomize is (name == "ci")


@pytest.mark.parametrize(("name", "number"), [("dev", 6), ("ci", 10), ("nightly", 400)])
def test_a_number_of_examples_scales_with_the_profile(name: str, number: int) -> None:
    """A costly test gets its share of whatever the profile gives."""
    program = "import tests.conftest; from tests.profiles import examples; print(examples(10))"
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "HYPOTHESIS_PROFILE": name},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout == f"{number}\n"
    assert examples(0) == 1
