"""Long texts inside message parts, in practice images as data URLs, kept once for each row.

An agent that works on screenshots sends the same megabytes with every turn. In the JSON of the parts a long
text is replaced by a reference, `{"$long_text": 3}`, into the row's list of long texts.
"""

from __future__ import annotations

from typing import Any

from art.books.plain_json import shown

_REFERENCE = "$long_text"
_MIN_CHARACTERS = 2**14


class TakenKeyError(ValueError):
    """Raised when message parts hold what looks like a reference already; they are stored as they are."""


class LongTexts:
    """The long texts of one row in the making.

    Attributes:
        size: Their length, in characters.
    """

    def __init__(self) -> None:
        self.size = 0
        self._numbers: dict[str, int] = {}

    def texts(self) -> list[str] | None:
        """Return them in order of their numbers, None if there are none."""
        return list(self._numbers) or None

    def set_apart(self, value: Any) -> Any:
        """Return a plain JSON value with references in the place of its long texts.

        Raises:
            TakenKeyError: It holds what looks like a reference already.
        """
        if isinstance(value, str) and len(value) >= _MIN_CHARACTERS and shown(value) == value:
            if value not in self._numbers:
                self._numbers[value] = len(self._numbers)
                self.size += len(value)
            return {_REFERENCE: self._numbers[value]}
        if isinstance(value, dict):
            if _REFERENCE in value:
                raise TakenKeyError(f"the key {_REFERENCE!r} is taken")
            return {key: self.set_apart(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.set_apart(item) for item in value]
        return value


def put_back(value: Any, texts: list[str]) -> Any:
    """Return a value with the texts in the place of the references to them."""
    if isinstance(value, dict):
        if value.keys() == {_REFERENCE}:
            return texts[value[_REFERENCE]]
        return {key: put_back(item, texts) for key, item in value.items()}
    if isinstance(value, list):
        return [put_back(item, texts) for item in value]
    return value
