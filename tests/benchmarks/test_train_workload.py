from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.gpu_train import SHAPES
from benchmarks.train_workload import (
    CPU_SHAPE,
    Shape,
    Workload,
    cpu_workload,
    make_workload,
    useful_flops,
)


def test_the_workload_keeps_the_size_that_the_bars_were_set_for() -> None:
    """The CPU workload has the same tokens in every run, and prompts counted once are what a group shares."""
    workload = cpu_workload()

    assert workload == cpu_workload()
    assert workload.num_tokens == 11_272
    assert workload.num_action_tokens == 3_080
    assert workload.num_shared_tokens == 3_080 + 8 * 128


def test_a_group_has_one_prompt_and_advantages_that_sum_to_zero() -> None:
    """As after a real rollout, trajectories of a group differ in their completions only."""
    for group in make_workload(CPU_SHAPE, 5, range(1, 9), groups=3, size=4).groups:
        assert len(group) == 4
        assert all(sample.prompt == group[0].prompt for sample in group)
        assert all(1 <= len(sample.completion) <= 8 for sample in group)
        assert sum(sample.advantage for sample in group) == pytest.approx(0, abs=1e-12)
        assert any(sample.advantage for sample in group)


def test_a_sequence_trains_the_completion_and_nothing_else() -> None:
    """What the trainer gets has one entry a token in every list, and the prompt as context."""
    (sample, *_), *_ = make_workload(CPU_SHAPE, 5, [3]).groups
    sequence = sample.as_sequence()

    assert sequence["token_ids"] == sample.prompt + sample.completion
    assert sequence["trained"] == [False] * 5 + [True] * 3
    assert len(sequence["logprobs"]) == len(sequence["temperatures"]) == 8


def test_a_saved_workload_is_read_back_as_it_was(tmp_path: Path) -> None:
    """Both sides of the comparison read the same trajectories, unknown logprobs included."""
    workload = cpu_workload()
    workload.save(tmp_path / "workload.json")

    read = Workload.load(tmp_path / "workload.json")

    assert repr(read) == repr(workload)  # NaN is not equal to itself


@pytest.mark.local
@pytest.mark.parametrize("shape", [CPU_SHAPE, Shape(50, 24, 2, 3, 1, 10, 40)], ids=["cpu", "odd"])
def test_the_counted_weights_are_those_of_the_model(shape: Shape) -> None:
    """The formula counts just the linear layers of the transformers model, and its output layer."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    with torch.device("meta"):
        model = Qwen3ForCausalLM(Qwen3Config(**shape.config()))
    linear = sum(m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Linear))

    assert shape.body_parameters == linear - model.lm_head.weight.numel()
    assert shape.head_parameters == model.lm_head.weight.numel()


def test_the_shapes_have_the_published_number_of_parameters() -> None:
    """Qwen3-1.7B and 4B are published with 1.4 and 3.6 billion parameters without the embedding."""
    sizes = {name: shape.body_parameters / 1e9 for name, shape in SHAPES.items()}

    assert sizes == pytest.approx({"qwen3-1.7b": 1.4, "qwen3-4b": 3.6}, rel=0.02)


def test_useful_work_grows_with_tokens_and_counts_the_output_layer_for_action_tokens_only() -> None:
    """A prompt token costs its way through the blocks, an action token the output layer as well."""
    one = useful_flops(CPU_SHAPE, 1, 0, per_weight=4)

    assert one == 4 * CPU_SHAPE.body_parameters
    assert useful_flops(CPU_SHAPE, 10, 0, per_weight=6) == 15 * one
    assert useful_flops(CPU_SHAPE, 1, 1, per_weight=4) == one + 4 * CPU_SHAPE.head_parameters
