"""Mutants that mix up models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from art.errors import ConfigurationError
from art_conformance.adapter import Received
from art_conformance.mutants import mutant
from art_conformance.reference import ReferenceBackend

if TYPE_CHECKING:
    from pathlib import Path

    from art.backend import AnyModel


def _renamed(directory: Path, name: str) -> Path:
    """Return the checkpoints' directory of the model that has this name in a path."""
    return directory.parent.with_name(name) / directory.name


@mutant(killed_by=("MULTI-01",))
class KnowsModelsByName(ReferenceBackend):
    """Where a model's checkpoints are is found by its name, without the project."""

    def __init__(self) -> None:
        super().__init__()
        self._directories: dict[str, Path] = {}

    def _directory(self, model: AnyModel) -> Path:
        return self._directories.setdefault(model.name, super()._directory(model))


@mutant(killed_by=("MULTI-02", "MULTI-04"))
class FoldsCase(ReferenceBackend):
    """Names that differ in case only are one."""

    def _directory(self, model: AnyModel) -> Path:
        directory = super()._directory(model)
        return _renamed(directory, directory.parent.name.lower())


@mutant(killed_by=("MULTI-02", "MULTI-04"))
class DecodesNames(ReferenceBackend):
    """Percent signs in a name are decoded, so that `a%2Fb` is `a/b`."""

    def _directory(self, model: AnyModel) -> Path:
        directory = super()._directory(model)
        return _renamed(directory, unquote(unquote(directory.parent.name)).replace("/", "%2F"))


@mutant(killed_by=("MULTI-02", "MULTI-04"))
class CutsLongNames(ReferenceBackend):
    """Of a long name only the first characters count, in lower case."""

    def _directory(self, model: AnyModel) -> Path:
        directory = super()._directory(model)
        name = directory.parent.name
        return _renamed(directory, name if len(name) < 64 else name[:64].lower())


@mutant(killed_by=("MULTI-02",))
class RefusesSlashes(ReferenceBackend):
    """A name with a slash is refused."""

    async def register(self, model: AnyModel) -> None:
        """Refuse it."""
        if "/" in model.name:
            raise ConfigurationError(f"{model.name!r} is no name of a file")
        await super().register(model)


@mutant(killed_by=("MULTI-03",))
class KeepsTheFirstLearningRate(ReferenceBackend):
    """The optimizer is made at the first train, with its learning rate, and kept for all."""

    _rate: float | None = None

    def _received(self, model: Any, groups: Any, config: Any) -> None:
        del groups
        self._rate = self._rate or config.learning_rate
        received = Received(self._rate, config.target_step)
        self.sent.setdefault((model.project, model.name), []).append(received)


@mutant(killed_by=("MULTI-05",))
class KeepsTheLastWeights(ReferenceBackend):
    """A train starts from the weights in memory, if it is the following step of any model."""

    def __init__(self) -> None:
        super().__init__()
        self._offset = 0.0
        self._owner: tuple[str, str] | None = None

    async def _commit(self, model: Any, step: int, weight: float) -> None:
        owner = (model.project, model.name)
        if self._owner not in {None, owner}:
            self._offset += 1.0
        self._owner = owner
        await super()._commit(model, step, weight + self._offset)
