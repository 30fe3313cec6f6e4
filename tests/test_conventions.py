"""House rules that no linter checks."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TEST_FILES = sorted([*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("conformance/test_*.py")])
SOURCE_FILES = sorted(
    [*ROOT.glob("src/**/*.py"), *ROOT.glob("conformance/art_conformance/**/*.py")]
)
MAX_LINES = 350


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", TEST_FILES, ids=relative)
def test_every_test_tells_its_behaviour(path: Path) -> None:
    """The docstring of each test is one sentence or two of behaviour."""
    tree = ast.parse(path.read_text())
    functions = [
        n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    silent = [f.name for f in functions if f.name.startswith("test_") and not ast.get_docstring(f)]
    assert silent == []


@pytest.mark.parametrize("path", SOURCE_FILES, ids=relative)
def test_every_module_says_what_it_is_for(path: Path) -> None:
    """A source file begins with a docstring, and is short enough to have one responsibility."""
    text = path.read_text()
    if text.strip():
        assert ast.get_docstring(ast.parse(text)), "no module docstring"
    assert len(text.splitlines()) <= MAX_LINES
