"""`art demo`: a real model, trained with real reinforcement learning on this CPU, and where its books lie.

The job is the letter task (`letters`): evaluate on unseen phrasings, train, evaluate again, delete old
checkpoints. What is planned stands in the model's state.json, so a demo that was killed goes on from its last
whole checkpoint and does what it set out to do; one that is finished goes on for more steps.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import art
from art.errors import ArtError
from art_local.backend import LocalBackend
from art_local.letters import BASE_MODEL, TRAIN_PHRASINGS, VAL_PHRASINGS, rollout, scenarios

if TYPE_CHECKING:
    from collections.abc import Sequence

    from art_local.letters import Scenario

PROJECT = "demo"
NAME = "letters"
# With these, accuracy on unseen phrasings is above 0.97 from step 10 on (scripts/check_base_model.py).
STEPS = 20
LEARNING_RATE = 2e-3
TRAIN_SAMPLES = 8
VAL_SAMPLES = 32
_BAR_WIDTH = 40


@dataclass(frozen=True)
class Plan:
    """What a demo set out to do; kept under "demo" in state.json.

    Attributes:
        target_step: The step to reach.
        val_at_start: Mean reward on unseen phrasings before the first training step.
        val_at_end: The same at `target_step`; None until the demo is finished.
    """

    target_step: int
    val_at_start: float
    val_at_end: float | None = None

    @classmethod
    def read(cls, model: art.TrainableModel) -> Plan | None:
        """Return the plan that is kept with the model, or None if there is none."""
        kept = (model.read_state() or {}).get("demo")
        try:
            return cls(**kept) if isinstance(kept, Mapping) else None
        except TypeError:  # written by another version, or by hand
            return None

    def keep(self, model: art.TrainableModel) -> None:
        """Keep the plan with the model."""
        model.merge_state({"demo": asdict(self)})


def command(argv: list[str]) -> int:
    """Train a real model on this CPU, and show where its rollouts and metrics lie.

    Args:
        argv: The arguments after `art demo`.

    Returns:
        0 if the reward on unseen phrasings rose, 1 if it did not or something failed, 130 after Ctrl+C.
    """
    options = _parser().parse_args(argv)
    try:
        return asyncio.run(_run(options))
    except KeyboardInterrupt:
        print("\ninterrupted; the same command goes on from the last checkpoint", file=sys.stderr)
        return 130
    except (ArtError, OSError) as error:
        print(f"art demo: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="art demo",
        description="Train a small model on the letter task with reinforcement learning, on this CPU. "
        "A demo that was killed goes on where it was; a finished one goes on for more steps.",
    )
    parser.add_argument(
        "--steps", type=_positive, default=STEPS, help="training steps (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of adapter and sampling (default: %(default)s)"
    )
    parser.add_argument(
        "--path",
        default=".art",
        help="directory under which everything is kept (default: %(default)s)",
    )
    parser.add_argument(
        "--fresh", action="store_true", help="delete what an earlier demo left and start over"
    )
    return parser


def _positive(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{value} is not a number of steps; use 1 or more")
    return value


async def _run(options: argparse.Namespace) -> int:
    model = art.TrainableModel(
        name=NAME,
        project=PROJECT,
        base_model=BASE_MODEL,
        base_path=options.path,
        report_metrics=[],  # a demo stays on this machine, whatever keys it finds
        _internal_config=art.dev.InternalModelConfig(
            peft_args=art.dev.PeftArgs(random_state=options.seed)
        ),
    )
    backend = LocalBackend()
    try:
        if options.fresh and art.model_dir(model).exists():
            shutil.rmtree(art.model_dir(model))
        print("starting an inference server and a training worker ...", flush=True)
        await model.register(backend)
        plan = await _make_plan(model, options)
        await _train(model, plan.target_step, options.seed)
        return await _finish(model, plan, options.seed)
    finally:
        await model.close()
        await backend.close()


async def _make_plan(model: art.TrainableModel, options: argparse.Namespace) -> Plan:
    """Take up the plan of a demo that was killed, or make a new one."""
    step = await model.get_step()
    plan = Plan.read(model)
    if plan is not None and plan.val_at_end is None:
        print(f"going on at step {step} of {plan.target_step}", flush=True)
        return plan
    if plan is not None:
        print(f"step {step} was reached before; {options.steps} more steps", flush=True)
        start = plan.val_at_start
    else:
        start = await _evaluate(model, options.seed)
    plan = Plan(target_step=step + options.steps, val_at_start=start)
    plan.keep(model)
    return plan


async def _train(model: art.TrainableModel, target_step: int, seed: int) -> None:
    questions = scenarios(TRAIN_PHRASINGS)
    for step in range(await model.get_step(), target_step):
        groups = await _gather(model, questions, TRAIN_SAMPLES, seed)
        await model.train(groups, art.TrainConfig(learning_rate=LEARNING_RATE))
        _show(step, "train/reward", _mean_reward(groups))


async def _evaluate(model: art.TrainableModel, seed: int) -> float:
    """Log rollouts on unseen phrasings under the split "val", and return their mean reward."""
    groups = await _gather(model, scenarios(VAL_PHRASINGS), VAL_SAMPLES, seed)
    await model.log(groups, split="val")
    value = _mean_reward(groups)
    _show(await model.get_step(), "val/reward", value)
    return value


async def _finish(model: art.TrainableModel, plan: Plan, seed: int) -> int:
    end = await _evaluate(model, seed)
    deleted = (await model.delete_checkpoints()).deleted
    Plan(plan.target_step, plan.val_at_start, end).keep(model)
    directory = art.model_dir(model)
    print(
        f"\n{len(deleted)} checkpoints deleted; the latest and the best are kept"
        f"\nreward on unseen phrasings: {plan.val_at_start:.3f} at the start, {end:.3f} at step "
        f"{plan.target_step}"
        f"\n\nevery rollout and metric is in {directory}; to read them:\n"
        "\n    import polars as pl"
        f'\n    print(pl.read_ndjson("{directory}/history.jsonl", infer_schema_length=None)'
        '.select("step", "train/reward", "val/reward"))'
        f'\n    print(pl.read_parquet("{directory}/trajectories/train/0000.parquet")'
        '.select("reward", "messages"))'
    )
    if end > plan.val_at_start:
        return 0
    print("art demo: the reward on unseen phrasings did not rise", file=sys.stderr)
    return 1


async def _gather(
    model: art.TrainableModel, questions: Sequence[Scenario], samples: int, seed: int
) -> list[art.TrajectoryGroup]:
    """Ask every question `samples` times; the answers to one question are a group."""
    step = await model.get_step()
    # `art.gather_trajectory_groups` does the same with a progress bar, which has no place between the lines here.
    return await asyncio.gather(
        *(
            art.TrajectoryGroup(
                rollout(model, question, seed=((seed * 10_000 + step) * 100 + i) * 100 + sample)
                for sample in range(samples)
            )
            for i, question in enumerate(questions)
        )
    )


def _mean_reward(groups: Sequence[art.TrajectoryGroup]) -> float:
    rewards = [trajectory.reward for group in groups for trajectory in group]
    return sum(rewards) / len(rewards)


def _show(step: int, metric: str, value: float) -> None:
    """Print one line of the curve; rewards lie between 0 and 1."""
    print(f"step {step:3}  {metric:12}  {value:.3f}  {'#' * round(value * _BAR_WIDTH)}", flush=True)
