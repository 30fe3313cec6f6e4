"""The rows that decode together: sampling and reporting, on top of the key-value batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from art.errors import InferenceError
from art_local.kv_batch import CausalLM, KVBatch
from art_local.sampling import log_probabilities, sample

if TYPE_CHECKING:
    from art_local.generation import Row


class DecodeBatch:
    """The running rows of one adapter.

    Forwards run in inference mode, and nothing else does: an adapter loaded in it could not be switched later.

    Args:
        lm: The model, with the adapter active at each call.

    Attributes:
        rows: The rows, in the order of the batch.
    """

    def __init__(self, lm: CausalLM) -> None:
        self.rows: list[Row] = []
        self._batch = KVBatch(lm)

    @torch.inference_mode()
    def join(self, rows: list[Row]) -> None:
        """Compute the prompts of new rows and sample their first tokens."""
        logits = self._batch.join([row.request.prompt_token_ids for row in rows])
        self.rows += rows
        _sample_into(rows, logits)

    @torch.inference_mode()
    def step(self) -> None:
        """Sample the next token of every row."""
        logits = self._batch.decode([row.last_token for row in self.rows])
        _sample_into(self.rows, logits)

    def drop_finished(self) -> None:
        """Let rows leave that have ended or whose caller has gone."""
        kept = [
            i for i, row in enumerate(self.rows) if not (row.finished or row.generation.cancelled)
        ]
        if len(kept) < len(self.rows):
            self._batch.keep(kept)
            self.rows = [self.rows[i] for i in kept]


def _sample_into(rows: list[Row], logits: torch.Tensor) -> None:
    """Sample the next token of each row, and report it with its log-probability."""
    device = logits.device
    temperatures = torch.tensor([row.request.temperature for row in rows], device=device)
    top_p = torch.tensor([row.request.top_p for row in rows], dtype=torch.float64, device=device)
    uniforms = torch.tensor([row.uniform() for row in rows], dtype=torch.float64, device=device)
    logprobs = log_probabilities(logits, temperatures)
    tokens = sample(logprobs, temperatures, top_p, uniforms)
    chosen = logprobs.gather(1, tokens[:, None])[:, 0].tolist()
    most = max(row.request.top_logprobs for row in rows)
    best = logprobs.topk(min(most, logprobs.shape[-1]), -1)
    tops = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    for row, token, logprob, (ids, values) in zip(rows, tokens.tolist(), chosen, tops, strict=True):
        wanted = row.request.top_logprobs
        try:
            row.accept(token, logprob, list(zip(ids[:wanted], values[:wanted], strict=True)))
        except InferenceError as error:
            row.generation.fail(str(error))
