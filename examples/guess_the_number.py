"""Several turns and a tool: the model learns to find a hidden number in as few guesses as it can.

    python examples/guess_the_number.py [--steps N] [--seed S]

The model calls the tool `guess(number)`, which answers "higher", "lower" or "correct". The rollout is what one
writes for any OpenAI endpoint. The base model was taught the format of a call, and with noise to halve what is
left; reinforcement learning makes it do so. Interrupt it and run it again: it goes on where it was.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import TYPE_CHECKING

import polars as pl

import art
from art.local import LocalBackend

if TYPE_CHECKING:
    from openai.types.chat.chat_completion import Choice

BASE_MODEL = "builtin:guess"
NUMBERS = range(1, 9)
MAX_GUESSES = 4  # what halving needs at most
QUESTION = "Find my number from 1 to 8."
TOOLS: art.Tools = [
    {
        "type": "function",
        "function": {
            "name": "guess",
            "description": "Guess the number.",
            "parameters": {
                "type": "object",
                "properties": {"number": {"type": "integer"}},
                "required": ["number"],
            },
        },
    }
]
MAX_TOKENS = 8  # of one turn; a call takes four
SAMPLES = 16  # games for each hidden number, compared with each other
LEARNING_RATE = 2e-3
STEPS = 30


def guess(secret: int, number: int) -> str:
    """The tool: tell where the hidden number is."""
    if number == secret:
        return "correct"
    return "higher" if secret > number else "lower"


def reward(guesses: int) -> float:
    """Return what a game is worth that was won with that many guesses; a game that was not won is worth 0."""
    return 1.0 - 0.05 * (guesses - 1)


def read_call(choice: Choice) -> tuple[str, int] | None:
    """Return the id and the number of the one call that a turn must be, None for anything else."""
    calls = choice.message.tool_calls or []
    if choice.message.content or len(calls) != 1 or calls[0].type != "function":
        return None
    try:
        arguments = json.loads(calls[0].function.arguments)
    except ValueError:
        return None
    number = arguments.get("number") if isinstance(arguments, dict) else None
    if calls[0].function.name != "guess" or type(number) is not int:  # True is an int, too
        return None
    return calls[0].id, number


async def rollout(model: art.TrainableModel, secret: int) -> art.Trajectory:
    """Play one game. It ends when the number is found, the guesses are used up, or a call is malformed."""
    game = art.Trajectory(
        messages_and_choices=[{"role": "user", "content": QUESTION}],
        tools=TOOLS,
        metadata={"secret": secret},
        metrics={"found": False, "malformed": False},
    )
    for guesses in range(1, MAX_GUESSES + 1):
        completion = await model.openai_client().chat.completions.create(
            model=model.get_inference_name(),
            messages=game.messages(),
            tools=TOOLS,
            max_tokens=MAX_TOKENS,
            temperature=1.0,
        )
        choice = completion.choices[0]
        game.messages_and_choices.append(choice)
        call = read_call(choice)
        if call is None:
            game.metrics["malformed"] = True
            break
        call_id, number = call
        result = guess(secret, number)
        game.messages_and_choices.append(
            {"role": "tool", "tool_call_id": call_id, "content": result}
        )
        if result == "correct":
            game.metrics["found"] = True
            game.reward = reward(guesses)
            break
    return game


async def gather(model: art.TrainableModel, what: str) -> list[art.TrajectoryGroup]:
    """Play every hidden number `SAMPLES` times; the games about one number are a group."""
    return await art.gather_trajectory_groups(
        (art.TrajectoryGroup(rollout(model, secret) for _ in range(SAMPLES)) for secret in NUMBERS),
        pbar_desc=what,
    )


async def evaluate(model: art.TrainableModel) -> float:
    """Log games under the split "val", and return their mean reward."""
    groups = await gather(model, "evaluate")
    await model.log(groups, split="val")
    rewards = [game.reward for group in groups for game in group]
    return sum(rewards) / len(rewards)


async def main(steps: int, seed: int) -> None:
    """Run the job."""
    model = art.TrainableModel(
        name="guess-001",
        project="guess-the-number",
        base_model=BASE_MODEL,
        _internal_config=art.dev.InternalModelConfig(peft_args=art.dev.PeftArgs(random_state=seed)),
    )
    backend = LocalBackend()
    try:
        await model.register(backend)
        first = await model.get_step()
        if first >= steps:
            print(f"step {first} is reached already; delete {art.model_dir(model)} to start over")
            return
        before = await evaluate(model)

        for step in range(first, steps):
            groups = await gather(model, f"step {step}")
            await model.train(groups, art.TrainConfig(learning_rate=LEARNING_RATE))

        after = await evaluate(model)
        await model.delete_checkpoints()  # all but the latest and the best by val/reward
        print(f"val/reward: {before:.3f} before, {after:.3f} at step {await model.get_step()}")
    finally:
        await model.close()
        await backend.close()

    directory = art.model_dir(model)
    history = pl.read_ndjson(directory / "history.jsonl", infer_schema_length=None)
    with pl.Config(tbl_rows=-1):
        print(
            history.select("step", "^(train|val)/(reward|found|malformed)$").filter(
                pl.any_horizontal(pl.col("^.*/reward$").is_not_null())
            )
        )
    print(f"every game and metric is in {directory}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a model to guess a number with a tool.")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=0, help="of the adapter's first weights")
    args = parser.parse_args()
    asyncio.run(main(args.steps, args.seed))
