from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from art.books.paths import ModelPaths, encode_component
from art.errors import ConfigurationError


def test_ordinary_names_give_upstreams_layout() -> None:
    """Scripts and tools that know upstream's paths find everything."""
    paths = ModelPaths(".art", "my-project", "agent_001.v2")

    assert paths.given == Path(".art/my-project/models/agent_001.v2")
    assert paths.root == paths.given.absolute()
    assert paths.history == paths.root / "history.jsonl"
    assert paths.trajectories("val", 12) == paths.root / "trajectories/val/0012.parquet"
    assert paths.trajectories("val", 12345).name == "12345.parquet"


@pytest.mark.parametrize(
    ("name", "directory"),
    [("org/model", "org%2Fmodel"), ("a%2Fb", "a%252Fb"), ("über", "über"), ("a b", "a b")],
)
def test_unsafe_characters_are_encoded(name: str, directory: str) -> None:
    """A slash is no directory, and an encoded name is not the name that looks like it."""
    assert encode_component(name, "name") == directory


@given(st.text(max_size=40), st.text(max_size=40))
def test_two_names_never_share_a_directory(first: str, second: str) -> None:
    """Encoding tells any two different names apart, and never leaves the parent directory."""
    assume(first != second)
    try:
        one, two = encode_component(first, "name"), encode_component(second, "name")
    except ConfigurationError:
        return
    assert one != two
    assert "/" not in one
    assert one not in {"", ".", ".."}
