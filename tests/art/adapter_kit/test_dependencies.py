from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from art.adapter_kit.dependencies import require
from art.errors import MissingDependencyError


@pytest.fixture
def make_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an installed distribution `plug` whose extra `gpu` needs two engines, one of them installed."""
    infos = {
        "plug": "Name: plug\nVersion: 1\nProvides-Extra: gpu\n"
        "Requires-Dist: engine_a<3,>=2.10; extra == 'gpu'\n"
        'Requires-Dist: engine_b>=1; extra == "gpu"\n'
        "Requires-Dist: engine_a>=9; extra == 'other'\n",
        "engine_a": "Name: engine_a\nVersion: 2.9.1+cpu\n",
    }
    for name, text in infos.items():
        folder = tmp_path / f"{name}-1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\n{text}")
    (tmp_path / "engine_a.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def check(*names: str) -> None:
    require(names, extra="gpu", needed_by="PlugBackend", distribution="plug")


@pytest.mark.usefixtures("make_distribution")
def test_what_is_missing_or_too_old_is_named_with_the_needed_version() -> None:
    """One error tells all problems and the command that solves them."""
    with pytest.raises(MissingDependencyError) as caught:
        check("engine_a", "engine_b")

    assert str(caught.value) == (
        "PlugBackend needs engine_a<3,>=2.10 (2.9.1+cpu is installed), engine_b>=1 (not installed); "
        'run: pip install "plug[gpu]"'
    )


@pytest.mark.parametrize("version", ["2.10", "2.10.0", "2.11", "10.0"])
def test_new_enough_versions_pass(make_distribution: Path, version: str) -> None:
    """Versions are compared number by number."""
    info = make_distribution / "engine_a-1.dist-info" / "METADATA"
    info.write_text(f"Metadata-Version: 2.1\nName: engine_a\nVersion: {version}\n")
    assert metadata.version("engine_a") == version

    check("engine_a")


@pytest.mark.usefixtures("make_distribution")
def test_a_module_that_is_no_installed_distribution_is_trusted(make_distribution: Path) -> None:
    """A module on the path has no version that could be compared."""
    (make_distribution / "engine_b.py").touch()

    check("engine_b")


def test_a_checkout_that_is_not_installed_tells_what_is_missing_without_a_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package on the path has no metadata that could tell its bounds."""
    (tmp_path / "engine_a.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))

    check("engine_a")
    with pytest.raises(MissingDependencyError, match=r"needs engine_b \(not installed\)"):
        check("engine_a", "engine_b")
