"""From the bytes of generated tokens to text: whole characters only, stop strings cut."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class TextStream:
    """Assembles the text of one completion, token by token.

    Text is held back while it may still change: the first bytes of a character, and characters that may
    turn out to begin a stop string. What was released adds up to the final text.

    Args:
        stop: Strings that end the text; none of them is empty.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._stop = stop
        self._held = ""

    def add(self, data: bytes) -> tuple[str, bool]:
        """Take the bytes of the next token.

        Returns:
            The text that is now certain, and whether a stop string ended the completion.
        """
        self._held += self._decoder.decode(data)
        return self._release()

    def finish(self) -> str:
        """The rest of the text, when the completion ended for another reason than a stop string.

        Bytes of an unfinished character become U+FFFD.
        """
        self._held += self._decoder.decode(b"", final=True)
        text, stopped = self._release()
        return text if stopped else text + self._held

    def _release(self) -> tuple[str, bool]:
        found = [at for at in (self._held.find(stop) for stop in self._stop) if at >= 0]
        if found:
            return self._held[: min(found)], True
        keep = max((overlap(self._held, stop) for stop in self._stop), default=0)
        text = self._held[: len(self._held) - keep]
        self._held = self._held[len(text) :]
        return text, False


def overlap(text: str, marker: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `marker`."""
    for length in range(min(len(text), len(marker) - 1), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0
