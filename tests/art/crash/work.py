"""The operations of a campaign: drawn from a seed, so that any process can tell what each of them wrote."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import art

if TYPE_CHECKING:
    from tests.art.crash.file_backend import FileBackend

KINDS = ("log", "metrics", "train", "backend.train", "delete", "state")
_WEIGHTS = (4, 1, 3, 2, 2, 2)
_SIZES = (1, 2, 8, 40, 120, 300)
_SIZE_WEIGHTS = (3, 3, 3, 3, 2, 1)
_GROUP_SIZE = 4
BEST_BY = "val/reward"


@dataclass(frozen=True)
class Op:
    """One call of the user, or two for `backend.train`, whose rollouts the user logs himself.

    Attributes:
        number: Unique in a directory, and told by every row that the operation writes.
        kind: One of KINDS.
        step: The step of the model when it starts.
        size: Trajectories of its batch.
    """

    number: int
    kind: str
    step: int
    size: int

    @property
    def effects(self) -> tuple[str, ...]:
        """What it leaves on disk, in the order in which it must appear there."""
        return {
            "log": ("file", "row"),
            "metrics": ("row",),
            "train": ("file", "row", "checkpoint", "train row"),
            "backend.train": ("checkpoint", "file", "row"),
            "delete": (),
            "state": ("state",),
        }[self.kind]

    @property
    def split(self) -> str:
        return "train" if "train" in self.kind else "val"

    @property
    def logged_at(self) -> int:
        """The step of its trajectory file and of the row beside it."""
        return self.step + 1 if self.kind == "backend.train" else self.step

    @property
    def policy_step(self) -> int | None:
        return self.step if self.kind == "backend.train" else None


def draw(rng: random.Random, number: int, step: int) -> Op:
    """Draw the next operation."""
    kind = rng.choices(KINDS, _WEIGHTS)[0]
    size = rng.choices(_SIZES, _SIZE_WEIGHTS)[0]
    # A single rollout cannot be trained on, and then the backend tells no metric that the row is known by.
    return Op(number, kind, step, max(2, size) if "train" in kind else size)


def groups_of(op: Op) -> list[art.TrajectoryGroup]:
    """Build the batch of an operation; the same one each time."""
    rng = random.Random(op.number)
    sizes = [min(_GROUP_SIZE, op.size - start) for start in range(0, op.size, _GROUP_SIZE)]
    return [
        art.TrajectoryGroup(
            [_trajectory(rng, op.number) for _ in range(size)],
            exceptions=[TimeoutError(f"rollout {op.number}")] * rng.randrange(2),
            metadata={"op": op.number},
        )
        for size in sizes
    ]


def _trajectory(rng: random.Random, number: int) -> art.Trajectory:
    tokens = [rng.randrange(50_000) for _ in range(rng.randrange(1, 30))]
    choice: Any = {
        "finish_reason": "stop",
        "index": 0,
        "message": {"role": "assistant", "content": rng.randbytes(len(tokens)).hex()},
        "token_ids": tokens,
        "logprobs": {
            "content": [
                {
                    "token": f"token_id:{t}",
                    "logprob": -rng.random(),
                    "bytes": None,
                    "top_logprobs": [],
                }
                for t in tokens
            ]
        },
    }
    return art.Trajectory(
        messages_and_choices=[{"role": "user", "content": rng.randbytes(40).hex()}, choice],
        reward=rng.random(),
        metrics={"op": number},
        metadata={"at": rng.random()},
    )


def state_of(op: Op) -> dict[str, Any]:
    """What a state operation merges."""
    return {"last": op.number, "filler": "x" * 100 * op.size, "of": {str(op.number % 7): op.number}}


async def perform(op: Op, model: art.TrainableModel[Any, Any], backend: FileBackend) -> list[int]:
    """Make the calls; returns the kept checkpoints of a deletion, else nothing."""
    backend.op_number = float(op.number)
    if op.kind == "log":
        await model.log(groups_of(op))
    elif op.kind == "metrics":
        await model.log(metrics={"op": op.number})
    elif op.kind == "train":
        result = await model.train(groups_of(op))
        assert result.step == op.step + 1
    elif op.kind == "backend.train":
        groups = groups_of(op)
        result = await backend.train(model, groups)
        assert result.step == op.step + 1
        await model.log(groups, "train", metrics=result.metrics, step=result.step)
    elif op.kind == "delete":
        return (await model.delete_checkpoints(BEST_BY)).kept
    else:
        model.merge_state(state_of(op))
    return []
