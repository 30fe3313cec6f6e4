"""The conformance suite: proves that a backend keeps the contract of `art.backend`.

    python -m art_conformance my_package.conformance:adapter

`my_package.conformance` makes an `Adapter`; a backend class can be named too.
"""

from art_conformance.adapter import Adapter, Fault, Probe, Received
from art_conformance.failure import Unobservable
from art_conformance.verdict import Level, Verdict

__all__ = ["Adapter", "Fault", "Level", "Probe", "Received", "Unobservable", "Verdict"]
