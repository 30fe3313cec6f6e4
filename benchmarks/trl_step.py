"""The peer's gradient step: `GRPOTrainer._compute_loss` of TRL and its backward pass, on given trajectories.

Run by the interpreter of the peer's environment: `python -m benchmarks.trl_step PREPARED MICRO_BATCH GRADIENTS`.
The trainer is set to the loss that ours has by default: CISPO with ratios up to 5, the mean over the tokens of
the whole batch. Both then have the same gradient, which the benchmark checks.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from datasets import Dataset  # type: ignore[import-untyped]
from peft import PeftModel
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found]  # the peer's environment has it

from benchmarks.step_clock import time_step
from benchmarks.train_workload import Workload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.train_workload import Sample


def main(prepared: Path, micro_batch: int, gradients: Path) -> None:
    """Measure, and print one line of JSON."""
    workload = Workload.load(prepared / "workload.json")
    base = AutoModelForCausalLM.from_pretrained(prepared / "model", dtype=torch.float32)
    model = PeftModel.from_pretrained(base, prepared / "adapter", is_trainable=True)
    samples = workload.samples()
    with tempfile.TemporaryDirectory() as scratch:
        trainer = _trainer(model, len(samples), scratch)
        num_items = torch.tensor(float(workload.num_action_tokens))

        def step() -> int:
            positions = 0
            for start in range(0, len(samples), micro_batch):
                inputs = _inputs(
                    samples[start : start + micro_batch], trainer.processing_class.pad_token_id
                )
                inputs["num_items_in_batch"] = num_items
                trainer._compute_loss(trainer.model, inputs).backward()
                positions += inputs["prompt_ids"].numel() + inputs["completion_ids"].numel()
            return positions

        parameters = {n: p for n, p in trainer.model.named_parameters() if p.requires_grad}
        print(json.dumps(time_step(step, parameters, gradients)))


def _trainer(model: Any, batch_size: int, scratch: str) -> Any:
    vocabulary = model.config.vocab_size
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({f"t{i}": i for i in range(vocabulary)}, "t0")),
        pad_token=f"t{model.config.pad_token_id}",
        eos_token=f"t{model.config.eos_token_id}",
    )
    arguments = GRPOConfig(
        output_dir=scratch,
        per_device_train_batch_size=batch_size,
        num_generations=8,
        max_completion_length=128,
        loss_type="cispo",
        epsilon_high=5.0,
        beta=0.0,
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=lambda **_: [0.0],
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": ["t1"] * batch_size}),
        processing_class=tokenizer,
    )
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def _inputs(samples: Sequence[Sample], pad: int) -> dict[str, torch.Tensor]:
    longest = max(len(sample.completion) for sample in samples)

    def padded(rows: Sequence[list[Any]], value: float) -> torch.Tensor:
        return torch.tensor([[*row, *[value] * (longest - len(row))] for row in rows])

    prompt_ids = torch.tensor([sample.prompt for sample in samples])
    return {
        "prompt_ids": prompt_ids,
        "prompt_mask": torch.ones_like(prompt_ids),
        "completion_ids": padded([s.completion for s in samples], pad),
        "completion_mask": padded([[1] * len(s.completion) for s in samples], 0),
        "old_per_token_logps": padded([s.logprobs for s in samples], 0.0),
        "advantages": torch.tensor([sample.advantage for sample in samples]),
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
