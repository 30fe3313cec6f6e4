from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from art.books.sinks import Sink, SinkContext, WandbSink, resolve_sinks
from art.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping


class NullSink:
    def open(self, context: SinkContext) -> None:
        pass

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def no_wandb_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ["WANDB_API_KEY", "WANDB_MODE"]:
        monkeypatch.delenv(name, raising=False)


def kinds(report_metrics: list[str | Sink] | None) -> list[type]:
    return [type(sink) for sink in resolve_sinks(report_metrics)]


def test_by_default_there_is_no_sink() -> None:
    """Without a key in the environment nothing is sent anywhere."""
    assert kinds(None) == []


@pytest.mark.parametrize(
    ("name", "value"), [("WANDB_API_KEY", "k" * 40), ("WANDB_MODE", "offline")]
)
def test_c087_key_or_offline_mode_turns_wandb_on(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """A key, or the offline mode without one, is enough; an empty list still means none."""
    monkeypatch.setenv(name, value)
    assert kinds(None) == [WandbSink]
    assert kinds([]) == []


def test_listed_wandb_needs_no_key_in_the_environment() -> None:
    """A user with a stored login names wandb; named twice it is one sink."""
    assert kinds(["wandb", "wandb"]) == [WandbSink]


@pytest.mark.parametrize("report_metrics", [None, ["wandb"]])
def test_disabled_mode_wins(
    monkeypatch: pytest.MonkeyPatch, report_metrics: list[str | Sink] | None
) -> None:
    """WANDB_MODE=disabled takes wandb out, listed or not."""
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert kinds(report_metrics) == []


def test_sink_objects_are_used_as_they_are() -> None:
    """An object with the three methods is a sink, beside names and in their order."""
    sink = NullSink()
    assert isinstance(sink, Sink)
    assert resolve_sinks([sink])[0] is sink
    assert kinds([sink, "wandb"]) == [NullSink, WandbSink]


def test_unknown_name_is_refused_with_the_known_ones() -> None:
    """A misspelt sink is an error that lists what there is."""
    with pytest.raises(ConfigurationError, match=r"'wnadb'; known are: .*wandb"):
        resolve_sinks(["wnadb"])


@pytest.mark.parametrize("item", [3, object(), NullSink])
def test_what_is_no_sink_is_refused(item: object) -> None:
    """Objects without the methods, and classes in place of objects, are errors."""
    with pytest.raises(ConfigurationError, match="open, log and close"):
        resolve_sinks([item])  # type: ignore[list-item] # the mistake under test


def test_a_string_in_the_place_of_the_list_is_pointed_out() -> None:
    """`report_metrics="wandb"` would be taken letter by letter."""
    names: Any = "wandb"
    with pytest.raises(
        ConfigurationError, match=r"is the string 'wandb'; pass a list, \['wandb'\]"
    ):
        resolve_sinks(names)


def test_a_sink_with_async_methods_is_refused() -> None:
    """Nobody would await them: every row would be lost."""

    class Async:
        def open(self, context: SinkContext) -> None: ...

        async def log(self, metrics: Mapping[str, float], step: int) -> None: ...

        def close(self) -> None: ...

    sink: Any = Async()
    with pytest.raises(ConfigurationError, match="async methods"):
        resolve_sinks([sink])
