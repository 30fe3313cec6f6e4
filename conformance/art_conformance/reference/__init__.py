"""The reference: a whole adapter with every optional capability, that trains one number. It passes every check.

The broken adapters of the self-check are made of it. `python -m art_conformance art_conformance.reference:adapter`
certifies it.
"""

from art_conformance.adapter import Adapter
from art_conformance.reference.backend import ReferenceBackend
from art_conformance.reference.probe import ReferenceProbe

adapter = Adapter(ReferenceBackend, probe=ReferenceProbe)

__all__ = ["ReferenceBackend", "ReferenceProbe", "adapter"]
