from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import pytest

import art
from art.errors import ConfigurationError, InvalidBackendError, MissingDependencyError
from art.registry import GROUP, RESTRICTION, backend_names, load_backend
from tests.art.installed import install

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path, where a test installs distributions."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv(RESTRICTION, raising=False)
    importlib.invalidate_caches()
    return tmp_path


def test_a_strangers_backend_is_found_by_its_entry_point(site: Path) -> None:
    """A distribution that declares a name in the group is listed and loaded."""
    source = "class ToyBackend:\n    pass\n"
    install(site, "toy-dist", GROUP, {"toy": "toy_one:ToyBackend"}, toy_one=source)
    assert "toy" in backend_names()
    assert load_backend("toy").__name__ == "ToyBackend"


def test_the_bundled_adapter_is_listed_like_any_other(site: Path) -> None:
    """The local adapter has no other way in than its entry point."""
    assert "local" in backend_names()


def test_an_unknown_name_lists_what_is_installed(site: Path) -> None:
    """The error tells the names to choose from and where a name comes from."""
    with pytest.raises(ConfigurationError, match=r"no backend 'quantum'.*local.*art\.backends"):
        load_backend("quantum")


@pytest.mark.parametrize("name", ["serverless", "tinker", "tinker_native"])
def test_an_adapter_that_is_not_shipped_says_so(site: Path, name: str) -> None:
    """Scripts that import it get an ImportError with the reason."""
    with pytest.raises(MissingDependencyError, match=f"does not ship the '{name}' backend"):
        load_backend(name)


def test_two_distributions_with_one_name_are_both_named(site: Path) -> None:
    """Neither wins silently."""
    source = "class ToyBackend:\n    pass\n"
    install(site, "toy-one", GROUP, {"toy": "toy_two:ToyBackend"}, toy_two=source)
    install(site, "toy-two", GROUP, {"toy": "toy_two:ToyBackend"})
    with pytest.raises(ConfigurationError, match="claim the backend name 'toy': toy-one, toy-two"):
        load_backend("toy")


def test_a_missing_package_names_distribution_and_extra(site: Path) -> None:
    """Where the distribution has an extra of the backend's name, the error tells how to install it."""
    install(
        site,
        "toy-dist",
        GROUP,
        {"heavy": "toy_three:Toy", "other": "toy_three:Toy"},
        toy_three="import no_such_package",
    )
    with pytest.raises(MissingDependencyError, match=r"no_such_package.*\"toy-dist\[heavy\]\""):
        load_backend("heavy")
    with pytest.raises(MissingDependencyError, match="'toy-dist'") as caught:
        load_backend("other")
    assert "pip install" not in str(caught.value)


def test_any_other_error_of_a_module_names_the_distribution(site: Path) -> None:
    """A module that raises, or lacks the class, is told apart from a missing package."""
    install(
        site,
        "toy-dist",
        GROUP,
        {"toy": "toy_four:Toy", "odd": "toy_five:Toy", "bare": "toy_five:Absent"},
        toy_four="raise ZeroDivisionError('at import')",
        toy_five="Toy = 3",
    )
    with pytest.raises(ConfigurationError, match=r"'toy-dist'.*ZeroDivisionError: at import"):
        load_backend("toy")
    with pytest.raises(ConfigurationError, match=r"'toy-dist'.*AttributeError"):
        load_backend("bare")
    with pytest.raises(InvalidBackendError, match=r"'toy-dist'.*must name a class"):
        load_backend("odd")


def test_the_environment_restricts_what_is_loaded(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names that ART_BACKENDS leaves out are neither listed nor loaded."""
    source = "class ToyBackend:\n    pass\n"
    install(site, "toy-dist", GROUP, {"toy": "toy_six:ToyBackend"}, toy_six=source)
    monkeypatch.setenv(RESTRICTION, "toy, absent")
    assert backend_names() == ["toy"]
    assert load_backend("toy").__name__ == "ToyBackend"
    with pytest.raises(ConfigurationError, match="ART_BACKENDS allows only absent, toy"):
        load_backend("local")
    monkeypatch.setenv(RESTRICTION, "")
    assert backend_names() == []


def test_shims_have_one_attribute(site: Path) -> None:
    """Anything else asked of them is an ordinary AttributeError, and `hasattr` works."""
    assert not hasattr(importlib.import_module("art.local"), "Nonsense")
    with pytest.raises(AttributeError, match=r"art\.serverless"):
        _ = importlib.import_module("art.serverless").Nonsense


def test_an_adapter_that_is_not_shipped_is_an_import_error_by_any_spelling(site: Path) -> None:
    """`from art import ...` and attribute access tell the same."""
    with pytest.raises(ImportError, match="serverless"):
        from art.serverless import ServerlessBackend  # noqa: F401 - the import is what is tested
    with pytest.raises(ImportError, match="tinker"):
        _ = art.TinkerBackend
