from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from art.errors import ConfigurationError
from art_conformance import Adapter
from art_conformance.adapter import load_adapter
from art_conformance.failure import SetupError
from tests.art_conformance import backends
from tests.art_conformance.backends import TwoMethods

HERE = "tests.art_conformance.backends"


def test_a_class_stands_for_an_adapter_that_declares_nothing() -> None:
    """A backend class can be named, and each capability that it lacks counts as not implemented."""
    adapter = load_adapter(f"{HERE}:TwoMethods")
    assert adapter.make_backend is TwoMethods
    assert adapter.declined("inference") == "not implemented"


def test_an_adapter_object_declares_for_itself() -> None:
    """Of an Adapter only what it declines is declined."""
    assert load_adapter(f"{HERE}:undeclared") is backends.undeclared
    assert backends.undeclared.declined("inference") is None


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nothing", "write package.module:name"),
        (":x", "write package.module:name"),
        ("no_such_package_here:x", "'no_such_package_here' could not be imported"),
        (f"{HERE}:Missing", "has no 'Missing'; it has "),
        (f"{HERE}:not_an_adapter", "is a int; expected an art_conformance.Adapter"),
    ],
)
def test_a_target_that_does_not_resolve_is_told_in_one_line(target: str, message: str) -> None:
    """What is wrong with a target is told in one line."""
    with pytest.raises(ConfigurationError) as caught:
        load_adapter(target)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_module_that_fails_is_told_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a module raises while it is imported, the message names error, file and line."""
    (tmp_path / "fails_at_import.py").write_text("\n\nraise KeyError('gone')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        ConfigurationError, match=r"KeyError: 'gone' \(fails_at_import.py, line 3, in <module>\)"
    ):
        load_adapter("fails_at_import:adapter")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"make_backend": 3}, "make_backend is 3"),
        ({"declines": {"speed": "no"}}, "names 'speed'; optional capabilities are step, listing"),
        ({"xfail": {"DEL-01": "later"}}, "has no link"),
        ({"timeout_s": 0}, "timeout_s is 0"),
    ],
)
def test_an_adapter_that_says_something_wrong_is_refused(
    options: dict[str, Any], message: str
) -> None:
    """An option of Adapter that cannot be is refused by name."""
    with pytest.raises(ConfigurationError, match=message):
        Adapter(**{"make_backend": TwoMethods, **options})


def test_a_factory_is_given_a_directory_where_it_takes_one(tmp_path: Path) -> None:
    """`make_backend` is called with a directory exactly where it has a parameter that must be given."""
    taken: list[Path] = []

    def takes_one(directory: Path) -> TwoMethods:
        taken.append(directory)
        return TwoMethods()

    def may_take_one(directory: Path | None = None) -> TwoMethods:
        assert directory is None
        return TwoMethods()

    Adapter(takes_one).new_backend(tmp_path / "state")
    Adapter(may_take_one).new_backend(tmp_path / "other")
    assert taken == [tmp_path / "state"]
    assert taken[0].is_dir()


def test_a_factory_that_fails_is_told_with_its_line(tmp_path: Path) -> None:
    """Where a factory raises, the message names error, file and line."""
    with pytest.raises(
        SetupError, match=r"ValueError: set TOY_API_KEY \(backends.py, line \d+, in __init__\)"
    ):
        Adapter(backends.NeedsAKey).new_backend(tmp_path)
