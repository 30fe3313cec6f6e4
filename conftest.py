"""What holds for everything that pytest collects here."""

from __future__ import annotations

import pytest


@pytest.hookimpl(trylast=True)  # after those that shuffle
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes minutes, so that no worker goes on alone at the end."""
    items.sort(key=lambda item: not _takes_minutes(item))


def _takes_minutes(item: pytest.Item) -> bool:
    return item.get_closest_marker("local") is not None and (
        item.get_closest_marker("conformance") is not None
        or item.get_closest_marker("vllm") is not None
    )
