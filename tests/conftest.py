"""What holds for all tests."""

from __future__ import annotations

from hypothesis import settings

# By default an example that takes longer than 200 ms is a failure: on a busy machine that says nothing.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
