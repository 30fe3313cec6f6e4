"""What the author of a metric sink needs: the protocol, and what a sink is told when it is opened."""

from art.books.sinks import Sink, SinkContext

__all__ = ["Sink", "SinkContext"]
