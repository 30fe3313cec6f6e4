"""Backends by name: adapters are found by their entry points, ours like any stranger's.

An adapter's distribution declares, in the group `art.backends`, a name and where its class is:
`toy = "my_package:ToyBackend"`. The environment variable `ART_BACKENDS`, a list of names with commas between
them, restricts which of the installed adapters are loaded.
"""

from __future__ import annotations

import os
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from art.errors import ConfigurationError, InvalidBackendError, MissingDependencyError

GROUP = "art.backends"
RESTRICTION = "ART_BACKENDS"

# Adapters that scripts for upstream import, and that this version does not have.
_NOT_SHIPPED = ("serverless", "tinker", "tinker_native")


def backend_names() -> list[str]:
    """Return the names of the installed backends that may be loaded, sorted."""
    allowed = _allowed()
    installed = {entry.name for entry in entry_points(group=GROUP)}
    return sorted(installed if allowed is None else installed & allowed)


def load_backend(name: str) -> type[Any]:
    """Return the class of a backend by its entry point's name.

    Raises:
        ConfigurationError: No installed distribution has it, two have it, `ART_BACKENDS` leaves it out, or
            its module failed.
        MissingDependencyError: Its module needs a package that is not installed.
        InvalidBackendError: What the entry point names is no class.
    """
    entry = _find(name)
    where = f"backend {name!r} of distribution {_distribution(entry)!r} ({entry.value})"
    try:
        backend = entry.load()
    except ImportError as error:
        raise MissingDependencyError(
            f"{where} could not be imported: {error}.{_install_hint(entry)}"
        ) from error
    except Exception as error:  # a stranger's module may raise anything while it is imported
        raise ConfigurationError(
            f"{where} could not be loaded: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(backend, type):
        raise InvalidBackendError(f"{where} is a {type(backend).__name__}; it must name a class")
    return backend


def load_attribute(module: str, attribute: str, class_name: str, backend: str) -> type[Any]:
    """Serve a module's `__getattr__` where the module is another spelling of one backend's class.

    Args:
        module: The module's name.
        attribute: What is asked of it.
        class_name: The one attribute it has.
        backend: The backend's name.

    Raises:
        AttributeError: Another attribute is asked for.
    """
    if attribute != class_name:
        raise AttributeError(f"module {module!r} has no attribute {attribute!r}")
    return load_backend(backend)


def _find(name: str) -> EntryPoint:
    allowed = _allowed()
    if allowed is not None and name not in allowed:
        raise ConfigurationError(
            f"backend {name!r} is not loaded: the environment variable {RESTRICTION} allows only "
            f"{', '.join(sorted(allowed)) or 'none'}"
        )
    found = list(entry_points(group=GROUP, name=name))
    if not found:
        installed = ", ".join(backend_names()) or "none"
        if name in _NOT_SHIPPED:
            raise MissingDependencyError(
                f"this version of art-rl does not ship the {name!r} backend; installed backends: {installed}"
            )
        raise ConfigurationError(
            f"no backend {name!r} is installed; installed backends: {installed}. An adapter's distribution "
            f"declares its name in the entry-point group {GROUP!r}"
        )
    owners = sorted({_distribution(entry) for entry in found})
    if len(owners) > 1:
        raise ConfigurationError(
            f"several distributions claim the backend name {name!r}: {', '.join(owners)}; uninstall all "
            "but one of them"
        )
    return found[0]


def _allowed() -> set[str] | None:
    restriction = os.environ.get(RESTRICTION)
    if restriction is None:
        return None
    return {name.strip() for name in restriction.split(",") if name.strip()}


def _distribution(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "unknown"


def _install_hint(entry: EntryPoint) -> str:
    extras = (
        entry.dist.metadata.get_all("Provides-Extra") if entry.dist is not None else None
    ) or []
    if entry.name not in extras:
        return ""
    return f' Its dependencies are an extra: pip install "{_distribution(entry)}[{entry.name}]"'
