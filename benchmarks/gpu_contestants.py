"""The gradient steps that are compared on a GPU: our trainer's, and the plain loop over padded batches.

All of them train the same adapter on the same model in memory, so only the way there differs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from art_local.packing import Layout
    from art_local.policy import Policy
    from benchmarks.train_workload import Sample, Shape, Workload

RANK, ALPHA = 16, 32


def write_model(directory: Path, shape: Shape, device: str) -> None:
    """Write a model with random weights: the trainer reads its base model from a directory."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    config = Qwen3Config(**shape.config())
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            model = Qwen3ForCausalLM(config)
    finally:
        torch.set_default_dtype(torch.float32)
    model.save_pretrained(directory)


def load_policy(directory: Path, device: str, row_tokens: int) -> Policy:
    """Load it as the training worker does, with an adapter that already does something."""
    from art_local.config import LoraSettings, WorkerSettings
    from art_local.policy import Policy

    settings = WorkerSettings(
        str(directory),
        LoraSettings(RANK, ALPHA),
        device=device,
        micro_batch_tokens=row_tokens,
    )
    policy = Policy(settings)
    torch.manual_seed(1)
    for name, parameter in policy.parameters.items():
        if "lora_B" in name:  # zero when fresh: then half of the gradient would be zero too
            torch.nn.init.normal_(parameter, std=0.02)
    return policy


def our_step(policy: Policy, workload: Workload, layout: Layout) -> Callable[[], int]:
    """Return our step in a layout, with what the policy decided of itself; see `benchmarks.our_step`.

    Raises:
        RuntimeError: The trainer does not train this model in that layout here; its warning says why.
    """
    from art_local.attention import IMPLEMENTATION
    from benchmarks.our_step import our_step as step_of

    if policy.layout == "padded":
        raise RuntimeError("the trainer takes padded rows only; its warning says why")
    policy.layout = layout
    _set_up(policy, IMPLEMENTATION, recomputes=recomputes(policy))
    return step_of(policy, workload)


def plain_step(policy: Policy, workload: Workload, micro_batch: int) -> Callable[[], int]:
    """Return the step of a plain transformers and PEFT loop.

    Batches of so many trajectories, as they come, padded on the right, with an attention mask, transformers' default
    attention, and the logits of the completions only, by its own `logits_to_keep`; nothing is recomputed.
    """
    _set_up(policy, "sdpa", recomputes=False)
    samples = workload.samples()

    def step() -> int:
        positions = 0
        for start in range(0, len(samples), micro_batch):
            batch = samples[start : start + micro_batch]
            loss, size = _plain_loss(policy, batch, workload.num_action_tokens)
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it without annotations
            positions += size
        return positions

    return step


def _plain_loss(
    policy: Policy, batch: Sequence[Sample], num_action_tokens: int
) -> tuple[torch.Tensor, int]:
    device = policy.device
    longest = max(len(s.completion) for s in batch)

    def padded(rows: Sequence[list[int]]) -> torch.Tensor:
        width = max(map(len, rows))
        return torch.tensor([row + [0] * (width - len(row)) for row in rows], device=device)

    input_ids = padded([s.prompt + s.completion for s in batch])
    attention_mask = padded([[1] * (len(s.prompt) + len(s.completion)) for s in batch])
    is_action = padded([[1] * len(s.completion) for s in batch])
    targets = padded([s.completion for s in batch])
    advantages = torch.tensor([s.advantage for s in batch], device=device)
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        logits = policy.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            logits_to_keep=longest + 1,
            use_cache=False,
        ).logits[:, :-1]
    log_probs = torch.log_softmax(logits.float(), dim=-1)
    logprobs = log_probs.gather(2, targets[..., None])[..., 0]
    loss: torch.Tensor = -(advantages[:, None] * logprobs * is_action).sum() / num_action_tokens
    return loss, input_ids.numel()


def recomputes(policy: Policy) -> bool:
    """Return whether our trainer computes parts of the forward pass again in the backward pass, to save memory."""
    return bool(policy.model.get_base_model().is_gradient_checkpointing)


def _set_up(policy: Policy, attention: str, *, recomputes: bool) -> None:
    from transformers.modeling_layers import GradientCheckpointingLayer

    policy.model.get_base_model().set_attn_implementation(attention)
    for module in policy.model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.training = recomputes


def gradient(policy: Policy) -> torch.Tensor:
    """Return the gradient of the whole adapter, on the CPU."""
    return torch.cat([_flat(p) for p in policy.parameters.values()])


def _flat(parameter: Any) -> torch.Tensor:
    return cast("torch.Tensor", parameter.grad.detach().double().flatten().cpu())
