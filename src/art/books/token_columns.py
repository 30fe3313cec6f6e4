"""What a Choice tells of its tokens, as columns and back: token ids, and logprobs in the OpenAI shape.

A step holds millions of tokens, so each check is one pass of compiled code over all tokens of a turn.
"""

from __future__ import annotations

from array import array
from itertools import chain
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, TypeGuard, cast

from art.books.plain_json import plain_scalar, shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_FIELDS = ("token", "logprob", "bytes", "top_logprobs")
_fields_of = itemgetter(*_FIELDS)
_extras_of = attrgetter("__pydantic_extra__")

# --- token ids ---


def are_integers(value: object) -> TypeGuard[list[int]]:
    """Tell whether a value is a list of plain integers."""
    return type(value) is list and set(map(type, value)) <= {int}


def fit_int32(values: Sequence[int]) -> bool:
    """Tell whether integers fit the columns of token ids."""
    try:
        array("i", values)
    except OverflowError:
        return False
    return True


def shared_length(prompt: Sequence[int], context: Sequence[int]) -> int:
    """Return how many ids a prompt has in common with the turns before it."""
    if prompt[: len(context)] == context:
        return len(context)
    pairs = enumerate(zip(prompt, context, strict=False))
    shorter = min(len(prompt), len(context))
    return next((i for i, (ours, theirs) in pairs if ours != theirs), shorter)


# --- logprobs ---


def logprob_columns(
    logprobs: object, token_ids: Sequence[int] | None
) -> tuple[dict[str, Sequence[Any] | None], bool]:
    """Return the columns of the logprobs of a Choice, and whether they capture all of it.

    They do where every entry is a token, its logprob and its bytes and no more. Where there is more
    (alternatives, refusals, provider's keys), the column `logprobs` is there for queries only.

    Args:
        logprobs: The logprobs.
        token_ids: The token ids of the Choice, where their column captures them.
    """
    from openai.types.chat.chat_completion import ChoiceLogprobs
    from openai.types.chat.chat_completion_token_logprob import ChatCompletionTokenLogprob

    if type(logprobs) is not ChoiceLogprobs or not isinstance(logprobs.content, list):
        return {}, False
    entries = logprobs.content
    fields = [vars(entry) for entry in entries if type(entry) is ChatCompletionTokenLogprob]
    if len(fields) < len(entries) or not set(map(len, fields)) <= {len(_FIELDS)}:
        return {}, False
    tokens, values, all_bytes, alternatives = _transposed(fields)
    kinds = set(map(type, values))
    if not all(issubclass(kind, float) for kind in kinds):
        return {}, False
    is_captured = (
        kinds <= {float}
        and logprobs.refusal is None
        and not logprobs.model_extra
        and not any(map(_extras_of, entries))
        and alternatives.count([]) == len(entries)
        and _are_texts(tokens)
        and _are_bytes(all_bytes)
    )
    if not is_captured:
        return {"logprobs": [plain_scalar(value) for value in values]}, False
    token_bytes = _bytes_column(all_bytes, tokens)
    if token_ids is not None and tokens == _spelled(token_ids):
        tokens = []
    return {"logprobs": values, "tokens": tokens, "token_bytes": token_bytes}, True


def logprobs_from_columns(
    logprobs: Sequence[float],
    tokens: Sequence[str],
    token_bytes: Sequence[bytes | None] | None,
    token_ids: Sequence[int] | None,
) -> dict[str, Any]:
    """Return logprobs as the plain fields of what `logprob_columns` captured."""
    if logprobs and not tokens:
        tokens = _spelled(token_ids or [])
    if token_bytes is None:
        token_bytes = [None] * len(logprobs)
    elif not token_bytes:
        token_bytes = [token.encode() for token in tokens]
    return {
        "content": [
            {
                "token": token,
                "logprob": logprob,
                "bytes": None if raw is None else list(raw),
                "top_logprobs": [],
            }
            for token, logprob, raw in zip(tokens, logprobs, token_bytes, strict=True)
        ]
    }


def _transposed(fields: Sequence[Mapping[str, Any]]) -> tuple[list[Any], ...]:
    """Return the values of all entries by field: tokens, logprobs, bytes, alternatives."""
    columns = zip(*map(_fields_of, fields), strict=True) if fields else [()] * len(_FIELDS)
    return tuple(map(list, columns))


def _spelled(token_ids: Sequence[int]) -> list[str]:
    """Return token ids as servers write them in the place of text."""
    return [f"token_id:{token_id}" for token_id in token_ids]


def _bytes_column(
    all_bytes: Sequence[list[int] | None], tokens: Sequence[str]
) -> list[bytes | None] | None:
    """Return the bytes of the tokens; none for the UTF-8 of their text, null where no token has bytes."""
    if all_bytes and set(map(type, all_bytes)) == {type(None)}:
        return None
    column = [None if raw is None else bytes(raw) for raw in all_bytes]
    return [] if column == [token.encode() for token in tokens] else column


def _are_texts(tokens: Sequence[object]) -> bool:
    if not set(map(type, tokens)) <= {str}:
        return False
    text = "\n".join(cast("Sequence[str]", tokens))  # apart, so that no two halves make a whole
    return shown(text) == text


def _are_bytes(all_bytes: Sequence[list[Any] | None]) -> bool:
    given = [raw for raw in all_bytes if raw is not None]
    if not set(map(type, given)) <= {list}:
        return False
    values = list(chain.from_iterable(given))
    if not set(map(type, values)) <= {int}:
        return False
    return not values or (min(values) >= 0 and max(values) < 256)
