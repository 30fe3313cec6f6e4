"""Token sampling for a batch whose rows each have their own temperature, `top_p` and random numbers."""

from __future__ import annotations

import torch


def log_probabilities(logits: torch.Tensor, temperatures: torch.Tensor) -> torch.Tensor:
    """Log-softmax of logits / temperature, with temperature 1 for greedy rows.

    Args:
        logits: [rows, vocabulary].
        temperatures: [rows]; 0 is greedy.

    Returns:
        [rows, vocabulary], float32, in nats.
    """
    scale = torch.where(temperatures > 0, temperatures, 1.0)
    return (logits.float() / scale[:, None]).log_softmax(-1)


def sample(
    logprobs: torch.Tensor,
    temperatures: torch.Tensor,
    top_p: torch.Tensor,
    uniforms: torch.Tensor,
) -> torch.Tensor:
    """Draw one token per row by inverting the cumulative distribution at the row's random number.

    Unlike a draw from a generator over the whole batch, the token depends on nothing but the row.

    Args:
        logprobs: [rows, vocabulary], from `log_probabilities`.
        temperatures: [rows]; rows at 0 take their most likely token.
        top_p: [rows], in (0, 1].
        uniforms: [rows], float64 in [0, 1).

    Returns:
        Token ids, [rows].
    """
    probabilities = logprobs.double().exp()
    if bool((top_p < 1).any()):
        probabilities = _nucleus(probabilities, top_p)
    cumulative = probabilities.cumsum(-1)
    # `right` finds the first entry above the draw, which therefore has a positive probability.
    draws = uniforms[:, None] * cumulative[:, -1:]
    drawn = torch.searchsorted(cumulative, draws, right=True)[:, 0].clamp(
        max=logprobs.shape[-1] - 1
    )
    return torch.where(temperatures > 0, drawn, logprobs.argmax(-1))


def _nucleus(probabilities: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Zero all but the fewest most likely tokens that together reach `top_p`."""
    ordered, tokens = probabilities.sort(stable=True, dim=-1, descending=True)
    # The mass before a token decides, so the token that crosses the limit stays, and one always does.
    kept = torch.where(ordered.cumsum(-1) - ordered < top_p[:, None], ordered, 0.0)
    return torch.zeros_like(probabilities).scatter(-1, tokens, kept)
