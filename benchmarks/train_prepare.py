"""Writes what all trainers start from: a random model, an adapter that already does something, and trajectories.

The directory then holds `model/`, `adapter/` (as PEFT writes it) and `workload.json`.
"""

from __future__ import annotations

import dataclasses
import random
from typing import TYPE_CHECKING, Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarks.train_workload import ALPHA, RANK, Workload

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.train_workload import Sample, Shape

# Sampler and trainer never agree to the last digit; ratios of exactly 1 would hide an error in them.
_LOGPROB_NOISE = 0.1


def prepare(directory: Path, shape: Shape, workload: Workload) -> None:
    """Write model, adapter and workload, the latter with log probabilities that the model nearly gives itself."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    base = Qwen3ForCausalLM(Qwen3Config(**shape.config()))
    base.save_pretrained(directory / "model")
    config = LoraConfig(
        r=RANK, lora_alpha=ALPHA, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    model = get_peft_model(base, config).eval()
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # zero when fresh: then half of the gradient would be zero too
            torch.nn.init.normal_(parameter, std=0.02)
    model.save_pretrained(directory / "adapter")

    noise = random.Random(2)
    groups = [[_sampled(model, sample, noise) for sample in group] for group in workload.groups]
    Workload(groups).save(directory / "workload.json")


def _sampled(model: Any, sample: Sample, noise: random.Random) -> Sample:
    ids = torch.tensor([*sample.prompt, *sample.completion])
    with torch.no_grad():
        logits = model(input_ids=ids[None]).logits[0, len(sample.prompt) - 1 : -1]
    targets = torch.tensor(sample.completion)
    logprobs = torch.log_softmax(logits, dim=-1).gather(1, targets[:, None])[:, 0].tolist()
    return dataclasses.replace(
        sample, logprobs=[value + noise.gauss(0, _LOGPROB_NOISE) for value in logprobs]
    )
