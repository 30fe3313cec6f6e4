"""What `vllm_side/art_vllm_worker.py` does inside real vLLM."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any

import httpx
import pytest

from art_local.vllm_server import VllmServer

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.local,
    pytest.mark.xdist_group("vllm"),
    pytest.mark.timeout(1800),
]

PROMPT = [257, 117, 115, 101, 114, 10, 72, 105, 258, 10]
TOLERANCE = 1e-4


async def sample(server: VllmServer, options: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Completions of the prompt, one for each set of options, all at once."""
    await server.ensure()
    transport = httpx.AsyncHTTPTransport(uds=str(server.socket), verify=False)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://vllm", timeout=600.0
    ) as client:
        answers = await asyncio.gather(
            *(
                client.post(
                    "/v1/completions",
                    json={
                        "model": server.base_model,
                        "prompt": PROMPT,
                        "max_tokens": 12,
                        "ignore_eos": True,
                        "logprobs": 1,
                        "return_token_ids": True,
                        **asked,
                    },
                )
                for asked in options
            )
        )
    return [answer.raise_for_status().json()["choices"][0] for answer in answers]


def worst_error(server: VllmServer, choice: dict[str, Any], temperature: float) -> float:
    """Largest difference between a completion's log probabilities and transformers'."""
    import torch

    ids = choice["token_ids"]
    with torch.no_grad():
        logits = model_of(server.base_model)(torch.tensor([PROMPT + ids])).logits[0]
    expected = (logits[len(PROMPT) - 1 : -1] / temperature).log_softmax(-1)
    given = torch.tensor(choice["logprobs"]["token_logprobs"])
    return float((expected[torch.arange(len(ids)), torch.tensor(ids)] - given).abs().max())


@cache
def model_of(directory: str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
@pytest.mark.parametrize(
    "cut",
    [{"top_p": 1e-6}, {"top_k": 1}, {"min_p": 0.999}, {"top_p": 0.5, "top_k": 3}, {}],
    ids=str,
)
async def test_log_probabilities_are_from_before_the_cut(
    vllm_server: VllmServer, temperature: float, cut: dict[str, Any]
) -> None:
    """They are log_softmax(logits / temperature) however little of the distribution is sampled from."""
    [choice] = await sample(vllm_server, [{"temperature": temperature, "seed": 1, **cut}])
    assert worst_error(vllm_server, choice, temperature) < TOLERANCE


async def test_greedy_and_sampled_requests_do_not_mix(vllm_server: VllmServer) -> None:
    """In one batch each request gets the log probabilities of its own temperature; a greedy one, unscaled."""
    kinds: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 0.7, "top_p": 0.3},
        {"temperature": 1.5},
        {"temperature": 1.0, "top_k": 2},
    ]
    options = [{**kind, "seed": seed} for seed in range(8) for kind in kinds]
    choices = await sample(vllm_server, options)
    errors = [
        worst_error(vllm_server, choice, asked["temperature"] or 1.0)
        for choice, asked in zip(choices, options, strict=True)
    ]
    assert max(errors) < TOLERANCE
