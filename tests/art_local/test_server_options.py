from __future__ import annotations

import logging

import pytest

from art_local.server_options import server_options


def test_server_options_of_upstream_are_taken_or_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Host, port and key are used; what speaks to another engine says that it has no effect."""
    options = {"server_args": {"port": 8000, "tool_call_parser": "hermes"}, "log_file": "x.log"}

    with caplog.at_level(logging.WARNING, "art_local"):
        assert server_options(options) == {"port": 8000}

    assert "server_args.tool_call_parser has no effect" in caplog.text
    assert "log_file has no effect" in caplog.text
    assert server_options(None) == {}
