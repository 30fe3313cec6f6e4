"""The key-value cache of a batch that sequences join and leave between decode steps."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import pad
from transformers import DynamicCache

if TYPE_CHECKING:
    from collections.abc import Sequence


class CausalLM:
    """A transformers causal language model, called for the logits of the last position.

    Args:
        model: Any `AutoModelForCausalLM`.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.device: torch.device = model.device
        accepted = inspect.signature(model.forward).parameters
        self._takes_positions = "position_ids" in accepted
        self._options = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}

    def last_logits(
        self, token_ids: torch.Tensor, lengths: torch.Tensor, cache: DynamicCache
    ) -> torch.Tensor:
        """Run the model over the next tokens of left-padded rows.

        Args:
            token_ids: [rows, new]; what the cache does not hold yet.
            lengths: [rows]; real tokens of each row, the new ones included.
            cache: Grows by `new` positions.

        Returns:
            [rows, vocabulary].
        """
        new = token_ids.shape[1]
        width = cache.get_seq_length() + new
        columns = torch.arange(width, device=self.device)
        options: dict[str, Any] = dict(self._options)
        if self._takes_positions:
            padding = (width - lengths)[:, None]
            options["position_ids"] = (columns[-new:] - padding).clamp(min=0)
        output = self.model(
            input_ids=token_ids,
            attention_mask=(columns >= (width - lengths)[:, None]).long(),
            past_key_values=cache,
            use_cache=True,
            **options,
        )
        if cache.get_seq_length() != width:  # the rows would silently be given each other's past
            raise RuntimeError("the model did not use the key-value cache it was given")
        logits: torch.Tensor = output.logits[:, -1]
        return logits


class KVBatch:
    """Rows of different lengths, left-padded to the longest.

    Args:
        lm: The model, with the right adapter active at each call.
    """

    def __init__(self, lm: CausalLM) -> None:
        self._lm = lm
        self._cache: DynamicCache | None = None
        self._lengths = torch.zeros(0, dtype=torch.long, device=lm.device)

    def join(self, prompts: Sequence[tuple[int, ...]]) -> torch.Tensor:
        """Append one row per prompt; equal prompts are computed once.

        Returns:
            Logits of the first token of each new row, [prompts, vocabulary].
        """
        distinct = {prompt: i for i, prompt in enumerate(dict.fromkeys(prompts))}
        width = max(map(len, distinct))
        padded = [(0,) * (width - len(prompt)) + prompt for prompt in distinct]
        lengths = self._tensor([len(prompt) for prompt in distinct])
        cache = DynamicCache()
        logits = self._lm.last_logits(self._tensor(padded), lengths, cache)
        rows = self._tensor([distinct[prompt] for prompt in prompts])
        cache.batch_select_indices(rows)
        self._append(cache, lengths[rows])
        return logits[rows]

    def decode(self, token_ids: Sequence[int]) -> torch.Tensor:
        """Feed each row its newest token.

        Returns:
            Logits of the next one, [rows, vocabulary].
        """
        assert self._cache is not None, "decode before join"
        self._lengths = self._lengths + 1
        return self._lm.last_logits(self._tensor(token_ids)[:, None], self._lengths, self._cache)

    def keep(self, rows: Sequence[int]) -> None:
        """Let all other rows leave, and drop the padding that only they needed."""
        if not rows or self._cache is None:
            self._cache, self._lengths = None, self._lengths[:0]
            return
        index = self._tensor(rows)
        surplus = self._cache.get_seq_length() - int((lengths := self._lengths[index]).max())
        for layer in self._cache.layers:
            layer.keys = layer.keys[index, :, surplus:]
            layer.values = layer.values[index, :, surplus:]
        self._lengths = lengths

    def _append(self, cache: DynamicCache, lengths: torch.Tensor) -> None:
        if self._cache is None:
            self._cache, self._lengths = cache, lengths
            return
        width = max(self._cache.get_seq_length(), cache.get_seq_length())
        for ours, theirs in zip(self._cache.layers, cache.layers, strict=True):
            ours.keys = torch.cat([_left_pad(ours.keys, width), _left_pad(theirs.keys, width)])
            ours.values = torch.cat(
                [_left_pad(ours.values, width), _left_pad(theirs.values, width)]
            )
        self._lengths = torch.cat([self._lengths, lengths])

    def _tensor(self, values: Any) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.long, device=self._lm.device)


def _left_pad(states: torch.Tensor, width: int) -> torch.Tensor:
    """Pad [rows, heads, positions, size] with masked positions on the left."""
    return pad(states, (0, 0, width - states.shape[2], 0))
