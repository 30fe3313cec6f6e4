from __future__ import annotations

import math

import pytest
import torch

from art_local.sampling import log_probabilities, sample

pytestmark = pytest.mark.local

PROBABILITIES = [0.1, 0.4, 0.0, 0.3, 0.2]


def shares(top_p: float, temperature: float = 1.0, draws: int = 1000) -> list[float]:
    """How often each token is drawn when the random numbers are spread evenly over [0, 1)."""
    logits = torch.tensor(PROBABILITIES).log().expand(draws, -1)
    temperatures = torch.full((draws,), temperature)
    uniforms = (torch.arange(draws, dtype=torch.float64) + 0.5) / draws
    limits = torch.full((draws,), top_p, dtype=torch.float64)
    tokens = sample(log_probabilities(logits, temperatures), temperatures, limits, uniforms)
    return [count / draws for count in torch.bincount(tokens, minlength=5).tolist()]


@pytest.mark.parametrize(
    ("top_p", "expected"),
    [
        (1.0, PROBABILITIES),
        (0.95, PROBABILITIES),
        (0.85, [0.0, 4 / 9, 0.0, 3 / 9, 2 / 9]),
        (0.65, [0.0, 4 / 7, 0.0, 3 / 7, 0.0]),
        (0.3, [0.0, 1.0, 0.0, 0.0, 0.0]),
        (1e-9, [0.0, 1.0, 0.0, 0.0, 0.0]),
    ],
)
def test_tokens_come_up_as_often_as_their_probability(top_p: float, expected: list[float]) -> None:
    """The fewest most likely tokens that reach top_p share the draws in proportion; impossible ones never come."""
    assert shares(top_p) == pytest.approx(expected, abs=0.002)


def test_temperature_flattens_and_zero_is_greedy() -> None:
    """Temperature 2 draws by the square roots of the probabilities, temperature 0 the most likely token alone."""
    roots = [math.sqrt(probability) for probability in PROBABILITIES]
    assert shares(1.0, temperature=2.0) == pytest.approx([r / sum(roots) for r in roots], abs=0.002)
    assert shares(1.0, temperature=0.0) == [0.0, 1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("uniform", [0.0, math.nextafter(1.0, 0.0)])
def test_the_ends_of_the_unit_interval_draw_possible_tokens(uniform: float) -> None:
    """The smallest and the largest random number draw tokens with a positive probability."""
    logprobs = torch.tensor([[-math.inf, 0.0, -math.inf]])
    one, wide = torch.ones(1), torch.ones(1, dtype=torch.float64)
    assert sample(logprobs, one, wide, torch.tensor([uniform], dtype=torch.float64)).tolist() == [1]


def test_each_row_has_its_own_settings() -> None:
    """Rows of one batch are drawn by their own temperature, top_p and random number."""
    logits = torch.tensor(PROBABILITIES).log().expand(3, -1)
    temperatures = torch.tensor([0.0, 1.0, 1.0])
    limits = torch.tensor([1.0, 0.3, 1.0], dtype=torch.float64)
    uniforms = torch.tensor([0.99, 0.99, 0.99], dtype=torch.float64)
    logprobs = log_probabilities(logits, temperatures)
    assert sample(logprobs, temperatures, limits, uniforms).tolist() == [1, 1, 4]
    assert logprobs[0].tolist() == logprobs[1].tolist()
