"""Broken adapters, one fault each: what the suite must catch, and is itself checked with.

A mutant is the reference with one fault:

```python
@mutant(killed_by=("DEL-01",))
class DeletesNothing(ReferenceBackend):
    \"\"\"Deletion does nothing, and says nothing.\"\"\"

    def _doomed(self, directory: Path, kept: Collection[int]) -> list[int]:
        return []
```
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from art_conformance.adapter import Adapter
from art_conformance.reference import ReferenceProbe

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Mutant:
    """One broken adapter.

    Attributes:
        name: The name of its class.
        fault: What is wrong with it, in a sentence.
        killed_by: The checks that must fail for it. Others may fail too.
        make_backend: Its class.
        options: Further arguments of its `Adapter`.
    """

    name: str
    fault: str
    killed_by: tuple[str, ...]
    make_backend: Callable[..., Any]
    options: dict[str, Any]

    @property
    def adapter(self) -> Adapter:
        """The mutant as the suite is shown it."""
        return Adapter(self.make_backend, **{"probe": ReferenceProbe, **self.options})


def mutant(*, killed_by: tuple[str, ...], **options: Any) -> Callable[[Callable[..., Any]], Mutant]:
    """Make a mutant of a class (or a factory).

    Args:
        killed_by: The checks that must fail for it.
        **options: Further arguments of its `Adapter` (`declines`, `timeout_s`, ...).
    """

    def decorate(make_backend: Callable[..., Any]) -> Mutant:
        fault = " ".join((inspect.getdoc(make_backend) or "").split())
        name = getattr(make_backend, "__name__", "mutant")
        return Mutant(name, fault, killed_by, make_backend, options)

    return decorate
