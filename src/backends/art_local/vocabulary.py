"""What the tokens of a tokenizer stand for, in bytes."""

from __future__ import annotations

import json
from typing import Any


class Vocabulary:
    """Bytes of single tokens.

    A token may hold part of a character only, so text is assembled from bytes, never from decoded tokens.

    Args:
        tokenizer: A transformers tokenizer.

    Attributes:
        special_ids: Tokens that are no text: `<|im_end|>`, padding, and so on.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.special_ids = frozenset(tokenizer.all_special_ids)
        self._added: dict[int, str] = {
            token_id: token.content for token_id, token in tokenizer.added_tokens_decoder.items()
        }
        self._decoders = _decoder_types(tokenizer)
        self._known: dict[int, bytes] = {}

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to the text; special tokens give their name."""
        known = self._known.get(token_id)
        if known is None:
            known = self._known[token_id] = self._look_up(token_id)
        return known

    def _look_up(self, token_id: int) -> bytes:
        if token_id in self._added:
            return self._added[token_id].encode()
        token = self._tokenizer.convert_ids_to_tokens(token_id)
        if token is None:  # models pad their vocabulary beyond the tokenizer's
            return b""
        if "ByteLevel" in self._decoders:
            return bytes(_BYTE_OF_CHARACTER[character] for character in token)
        if "ByteFallback" in self._decoders and len(token) == 6 and token.startswith("<0x"):
            return bytes.fromhex(token[3:5])
        if self._decoders & {"ByteFallback", "Metaspace"}:
            return str(token).replace("\u2581", " ").encode()
        return str(self._tokenizer.decode([token_id])).encode()


def _decoder_types(tokenizer: Any) -> frozenset[str]:
    """Names of the steps with which the tokenizers library turns this tokenizer's tokens into text."""
    if not tokenizer.is_fast or tokenizer.backend_tokenizer.decoder is None:
        return frozenset()
    decoder = json.loads(tokenizer.backend_tokenizer.decoder.__getstate__())
    return frozenset(step["type"] for step in [decoder, *decoder.get("decoders", [])])


def _byte_level_alphabet() -> dict[str, int]:
    """The characters that byte-level BPE spells bytes with (GPT-2's `bytes_to_unicode`, inverted)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + i): byte for i, byte in enumerate(others)
    }


_BYTE_OF_CHARACTER = _byte_level_alphabet()
