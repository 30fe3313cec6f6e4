"""What holds for all tests."""

from __future__ import annotations

import os

from hypothesis import settings

from tests.profiles import chosen_profile, register_profiles

register_profiles()
settings.load_profile(chosen_profile(os.environ))
