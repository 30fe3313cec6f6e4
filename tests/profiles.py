"""How many examples hypothesis tries: few while one works, the same ones every time in CI, many at night.

`HYPOTHESIS_PROFILE` names a profile; without it `CI` means ci.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from collections.abc import Mapping

_EXAMPLES = {"dev": 30, "ci": 50, "nightly": 2000}


def register_profiles() -> None:
    """Make the profiles known to hypothesis."""
    for name, max_examples in _EXAMPLES.items():
        settings.register_profile(
            name,
            max_examples=max_examples,
            derandomize=name == "ci",
            print_blob=True,
            # On a busy machine the time that an example takes says nothing about the code.
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        )


def chosen_profile(environment: Mapping[str, str]) -> str:
    """Return the name of the profile to load."""
    named = environment.get("HYPOTHESIS_PROFILE")
    if named:
        return named
    return "ci" if environment.get("CI") else "dev"


def examples(number: int) -> int:
    """Return `max_examples` for a test that wants `number` of them where CI tries 50.

    Use it as `@settings(max_examples=examples(10))`, so that a costly test tries more at night as well.
    """
    return max(1, number * settings().max_examples // _EXAMPLES["ci"])
