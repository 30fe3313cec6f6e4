from __future__ import annotations

import logging

import pytest

from art_local import option_rules
from art_local.server_options import ServerOptions

OPTIONS = {
    "server_args": {"port": 8000, "api_key": "secret", "tool_call_parser": "hermes"},
    "engine_args": {"max_model_len": 512},
    "log_file": "x.log",
}


@pytest.fixture(autouse=True)
def _warn_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(option_rules, "_warned", set())


def test_server_options_of_upstream_are_taken_or_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Host, port and key are used; what speaks to another engine says that it has no effect."""
    with caplog.at_level(logging.WARNING, "art_local"):
        options = ServerOptions.of(OPTIONS)
        options.warn_without_vllm()

    assert options.gateway == {"port": 8000, "api_key": "secret"}
    assert "server_args.tool_call_parser has no effect" in caplog.text
    assert "engine_args.max_model_len has no effect" in caplog.text
    assert "log_file has no effect" in caplog.text


def test_with_vllm_its_options_are_handed_on(caplog: pytest.LogCaptureFixture) -> None:
    """The gateway's options and vLLM's are kept apart, and only what speaks to neither is warned of."""
    with caplog.at_level(logging.WARNING, "art_local"):
        options = ServerOptions.of(OPTIONS)

    assert options.gateway == {"port": 8000, "api_key": "secret"}
    assert options.server_args == {"tool_call_parser": "hermes"}
    assert options.engine_args == {"max_model_len": 512}
    assert [record.args for record in caplog.records] == [("log_file",)]
    assert "secret" not in repr(options)
    assert ServerOptions.of(None) == ServerOptions()
