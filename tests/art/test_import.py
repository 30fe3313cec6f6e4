from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest

import art

pytestmark = pytest.mark.process

HEAVY = (
    "art_local",
    "httpx",
    "numpy",
    "openai",
    "polars",
    "pyarrow",
    "tinker",
    "torch",
    "transformers",
    "vllm",
    "wandb",
)


def run_python(code: str) -> str:
    """Run code in a fresh interpreter where warnings are errors; return all that it prints."""
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return run.stdout


@pytest.mark.parametrize(
    "use",
    [
        "import art",
        "import art; art.Trajectory, art.TrajectoryGroup",
        "import art; art.TrajectoryGroup([art.Trajectory(messages_and_choices=[{'role': 'user'}], reward=1)])",
        "import art; art.Model, art.TrainableModel, art.Backend, art.retry, art.utils, art.dev",
        "import art; art.gather_trajectories, art.gather_trajectory_groups, art.trajectory_group_batches",
        "import art.cli, art.registry, art.local, art.serverless, art.tinker",
        "import art; dir(art)",
    ],
)
def test_importing_is_silent_and_loads_nothing_heavy(use: str) -> None:
    """Neither the import nor the first use of these names prints, warns, or loads an engine or an adapter."""
    loaded = f"import sys; print(sorted(set({HEAVY!r}) & set(sys.modules)))"
    assert run_python(f"{use}; {loaded}") == "[]\n"


def test_importing_changes_nothing_outside() -> None:
    """Environment, working directory and logging are as they were."""
    state = "(dict(os.environ), os.getcwd(), logging.root.handlers[:], logging.root.level)"
    code = f"import os, logging; before = {state}; import art; print(before == {state})"
    assert run_python(code) == "True\n"


@pytest.mark.parametrize("name", art.__all__)
def test_every_public_name_can_be_reached(name: str) -> None:
    """What `__all__` promises is there, and is found again as the same object."""
    assert getattr(art, name) is getattr(art, name)


def test_dir_lists_public_names_and_submodules() -> None:
    """Completion in a notebook shows what there is."""
    assert {*art.__all__, "LocalBackend", "utils", "trajectories"} <= set(dir(art))


def test_a_star_import_gives_exactly_the_public_names() -> None:
    """`from art import *` works without any adapter's dependencies."""
    code = "from art import *; names = set(dir()); import art; print(names >= set(art.__all__))"
    assert run_python(code) == "True\n"


def test_a_misspelt_name_is_an_attribute_error() -> None:
    """`hasattr` and `from art import ...` tell so in the usual way."""
    assert not hasattr(art, "Trajektory")
    with pytest.raises(ImportError, match="Trajektory"):
        from art import Trajektory  # type: ignore[attr-defined]  # noqa: F401 - the import is tested


def test_the_version_is_the_distributions() -> None:
    """`art.__version__` is read from the installed metadata."""
    assert art.__version__ == version("art-rl")
