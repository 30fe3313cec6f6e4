"""Which names an inference server answers to: `name@step`, the bare name, the base model, nothing else.

A request for a checkpoint that is gone must never be answered by other weights, so a name either resolves
to exactly one set of weights or to none. State only; lives on one event loop.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class InFlight:
    """Counts requests in flight and lets one wait until there are none."""

    def __init__(self) -> None:
        self.count = 0
        self._idle = asyncio.Event()

    @contextmanager
    def lease(self) -> Iterator[None]:
        """Count a request while the block runs."""
        self.count += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.count -= 1
            if self.count == 0:
                self._idle.set()

    async def drained(self, timeout_s: float) -> bool:
        """Wait until no request is in flight; False when that takes longer than `timeout_s` seconds."""
        if self.count == 0:
            return True
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            return False
        return True


@dataclass(eq=False)
class Served:
    """Weights that answer under a name.

    Attributes:
        name: The canonical name, which responses are stamped with: `m@7`, or the base model's.
        step: The checkpoint's step; None for the base model.
        adapter: The engine's id of the adapter; None for the base model.
        retired: Whether the name no longer leads here. Requests that began before go on.
        requests: The requests that these weights are answering.
    """

    name: str
    step: int | None
    adapter: str | None
    retired: bool = False
    requests: InFlight = field(default_factory=InFlight, repr=False)


class ServedNames:
    """The names of one model's checkpoints and of its base model.

    Should the model bear its base model's name, the name means the trained model.

    Args:
        model_name: The trained model's name, `m` in `m@7`.
        base_model_name: The name the base model answers under.
    """

    def __init__(self, model_name: str, base_model_name: str) -> None:
        self.model_name = model_name
        self.base = Served(base_model_name, step=None, adapter=None)
        self._by_step: dict[int, Served] = {}
        self._latest: Served | None = None
        self._retired_steps: set[int] = set()
        self._adapters_named = 0

    def step_of(self, name: str) -> int | None:
        """The step that a name `name@step` is pinned to (zero-padding accepted), or None for other names."""
        prefix, _, digits = name.rpartition("@")
        # The bound keeps `int` from refusing an absurdly long number.
        if prefix != self.model_name or not (
            digits.isascii() and digits.isdigit() and len(digits) < 19
        ):
            return None
        return int(digits)

    def resolve(self, name: str) -> Served | None:
        """The weights that answer under a name; None when nothing does."""
        step = self.step_of(name)
        if step is not None:
            return self._by_step.get(step)
        if name == self.model_name:
            return self._latest
        return self.base if name == self.base.name else None

    def why_unknown(self, name: str) -> str:
        """Tell a user why a name does not resolve."""
        step = self.step_of(name)
        if step is not None and step in self._retired_steps:
            return f"The checkpoint {name!r} has been deleted; /v1/models lists the names that are served."
        if name == self.model_name:
            return f"No checkpoint of {name!r} is the latest; ask for one that /v1/models lists."
        return f"The model {name!r} does not exist; /v1/models lists the names that are served."

    def listing(self) -> list[tuple[str, Served]]:
        """Every (name, weights) that is served: the base model, the bare name, the steps in order."""
        names = [(self.base.name, self.base)] if self.base.name != self.model_name else []
        if self._latest is not None:
            names.append((self.model_name, self._latest))
        names += [(served.name, served) for _, served in sorted(self._by_step.items())]
        return names

    def new_adapter_id(self) -> str:
        """An id that no adapter had before. It has no dot: peft takes names with dots for paths."""
        self._adapters_named += 1
        return f"slot{self._adapters_named - 1}"

    def publish(self, name: str, adapter: str, *, latest: bool) -> Served | None:
        """Serve an adapter under a name from now on.

        Args:
            name: `{model_name}@{step}`.
            adapter: The engine's id of the adapter.
            latest: Whether the bare name means this one now. It also does when it meant the replaced one.

        Returns:
            What the name meant before, now retired, or None.
        """
        step = self.step_of(name)
        if step is None:
            raise ValueError(f"expected {self.model_name}@STEP, got {name!r}")
        replaced = self._by_step.get(step)
        served = Served(f"{self.model_name}@{step}", step, adapter)
        self._by_step[step] = served
        self._retired_steps.discard(step)
        if latest or (replaced is not None and replaced is self._latest):
            self._latest = served
        if replaced is not None:
            replaced.retired = True
        return replaced

    def retire(self, name: str) -> Served | None:
        """Stop serving `name@step` at once; None when it is not served.

        When it was the latest, the bare name means nothing until another one is published as the latest.
        """
        step = self.step_of(name)
        served = None if step is None else self._by_step.pop(step, None)
        if served is None:
            return None
        self._retired_steps.add(served.step or 0)
        served.retired = True
        if self._latest is served:
            self._latest = None
        return served
