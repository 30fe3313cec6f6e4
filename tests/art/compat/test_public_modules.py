from __future__ import annotations

import art
import art.sinks


def test_sink_authors_have_a_public_home() -> None:
    """The protocol of a sink, and what it is told, are importable without the private rooms."""
    assert art.sinks.__all__ == ["Sink", "SinkContext"]
    assert all(hasattr(art.sinks, name) for name in art.sinks.__all__)
