"""The whole job: train a model on CPU with reinforcement learning, evaluate it, clean up, read the books.

    python examples/letters.py

The model is asked for one of four letters and rewarded for answering with exactly it. The base model was
taught this with noise and is right about half of the time. Evaluation uses phrasings that training never
shows. Interrupt it and run it again: it goes on where it was.
"""

from __future__ import annotations

import asyncio

import polars as pl

import art
from art.local import LocalBackend

BASE_MODEL = "builtin:letters"
LETTERS = "abcd"
TRAIN_PHRASINGS = ("Answer with {}.", "Reply with {}.", "Choose {}.", "Write {}.")
VAL_PHRASINGS = ("Please say {}.", "Pick {}.")
MAX_TOKENS = 8
TRAIN_SAMPLES = 8  # of each question, compared with each other
VAL_SAMPLES = 32
LEARNING_RATE = 2e-3
STEPS = 20


def reward(letter: str, text: str | None) -> float:
    """Return 1.0 for exactly the letter, else 0.0."""
    return float(text == letter)


async def rollout(model: art.TrainableModel, phrasing: str, letter: str) -> art.Trajectory:
    """Ask the model once and score its answer."""
    messages: art.Messages = [{"role": "user", "content": phrasing.format(letter)}]
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(),
        messages=messages,
        max_tokens=MAX_TOKENS,
        temperature=1.0,
    )
    choice = completion.choices[0]
    return art.Trajectory(
        messages_and_choices=[*messages, choice],
        reward=reward(letter, choice.message.content),
        metadata={"letter": letter, "phrasing": phrasing},
    )


async def gather(
    model: art.TrainableModel, phrasings: tuple[str, ...], samples: int, what: str
) -> list[art.TrajectoryGroup]:
    """Ask every question `samples` times; the answers to one question are a group."""
    return await art.gather_trajectory_groups(
        (
            art.TrajectoryGroup(rollout(model, phrasing, letter) for _ in range(samples))
            for phrasing in phrasings
            for letter in LETTERS
        ),
        pbar_desc=what,
    )


async def evaluate(model: art.TrainableModel) -> float:
    """Log rollouts on unseen phrasings under the split "val", and return their mean reward."""
    groups = await gather(model, VAL_PHRASINGS, VAL_SAMPLES, "evaluate")
    await model.log(groups, split="val")
    rewards = [trajectory.reward for group in groups for trajectory in group]
    return sum(rewards) / len(rewards)


async def main() -> None:
    """Run the job."""
    model = art.TrainableModel(name="letters-001", project="letters", base_model=BASE_MODEL)
    backend = LocalBackend()
    try:
        await model.register(backend)
        before = await evaluate(model)

        for step in range(await model.get_step(), STEPS):
            groups = await gather(model, TRAIN_PHRASINGS, TRAIN_SAMPLES, f"step {step}")
            await model.train(groups, art.TrainConfig(learning_rate=LEARNING_RATE))

        after = await evaluate(model)
        await model.delete_checkpoints()  # all but the latest and the best by val/reward
        print(f"val/reward: {before:.3f} before, {after:.3f} at step {await model.get_step()}")
    finally:
        await model.close()
        await backend.close()

    directory = art.model_dir(model)
    print(f"every rollout and metric is in {directory}")
    history = pl.read_ndjson(directory / "history.jsonl", infer_schema_length=None)
    rollouts = pl.read_parquet(directory / "trajectories" / "train" / "0000.parquet")
    print(history.select("step", "train/reward", "val/reward"))
    print(rollouts.select("group_index", "reward", "metadata"))


if __name__ == "__main__":
    asyncio.run(main())
