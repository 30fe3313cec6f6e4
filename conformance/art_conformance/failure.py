"""How a check says that a rule is broken: what was sent, what was expected, what came back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from traceback import FrameSummary


class CheckFailed(Exception):  # noqa: N818 - reads as a sentence where it is raised
    """A rule is broken.

    Args:
        got: What came back.
        expected: What should have.
        sent: What the frontend did.
    """

    def __init__(self, got: str, *, expected: str, sent: str) -> None:
        self.got, self.expected, self.sent = got, expected, sent
        super().__init__(f"sent: {sent}; expected: {expected}; got: {got}")

    def lines(self) -> list[str]:
        """The three parts, each on a line of its own."""
        return [f"sent:     {self.sent}", f"expected: {self.expected}", f"got:      {self.got}"]


class Unobservable(Exception):  # noqa: N818 - as above
    """Raised where a probe does not show what a check would have to see; the message says why."""


class SetupError(Exception):
    """Raised where what the adapter's author supplied (a factory, groups, a probe) fails by itself."""


def expect(condition: object, *, got: object, expected: str, sent: str) -> None:
    """Raise CheckFailed unless the condition holds."""
    if not condition:
        raise CheckFailed(str(got), expected=expected, sent=sent)


def expect_equal(got: Any, expected: Any, *, sent: str) -> None:
    """Raise CheckFailed unless both are equal; of two dicts or lists the first difference is told."""
    if got != expected:
        path, ours, theirs = _first_difference(expected, got)
        raise CheckFailed(f"{path}{theirs!r}", expected=f"{path}{ours!r}", sent=sent)


def place_of(frame: FrameSummary) -> str:
    """Say where in the code something is: file, line and function, without the path."""
    return f"{frame.filename.rpartition('/')[2]}, line {frame.lineno}, in {frame.name}"


def _first_difference(expected: Any, got: Any) -> tuple[str, Any, Any]:
    if isinstance(expected, dict) and isinstance(got, dict):
        for key in sorted({*expected, *got}, key=repr):
            ours, theirs = expected.get(key, _ABSENT), got.get(key, _ABSENT)
            if ours != theirs:
                path, left, right = _first_difference(ours, theirs)
                return f"[{key!r}] {path}", left, right
    if isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got):
        for i, (ours, theirs) in enumerate(zip(expected, got, strict=True)):
            if ours != theirs:
                path, left, right = _first_difference(ours, theirs)
                return f"[{i}] {path}", left, right
    return "", expected, got


class _Absent:
    def __repr__(self) -> str:
        return "nothing"


_ABSENT = _Absent()
