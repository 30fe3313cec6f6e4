"""What each of two processes under torchrun answers to the questions of `World`, as a line of JSON."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import torch

from art_local.distributed import ProcessGroup, ToldByAnotherError

if TYPE_CHECKING:
    from collections.abc import Callable


def gradients(world: ProcessGroup) -> list[list[float] | None]:
    """Sums of gradients: of both processes, of one of them, and of none."""
    both, one, none = (torch.nn.Parameter(torch.zeros(2)) for _ in range(3))
    both.grad = torch.tensor([1.0, 2.0]) * (world.rank + 1)
    if world.rank == 1:
        one.grad = torch.tensor([5.0, 6.0])
    world.sum_gradients([both, one, none])
    return [p.grad.tolist() if p.grad is not None else None for p in (both, one, none)]


def told(world: ProcessGroup, failing: set[int], question: str) -> dict[str, Any]:
    """What a process hears when some fail while the others ask a question."""
    try:
        if world.rank in failing:
            return {"told": world.tell({"from": world.rank})}
        ask: dict[str, Callable[[], Any]] = {
            "any": lambda: world.any(True),
            "gather": lambda: world.gather(1),
            "sum": lambda: world.sum_gradients([torch.nn.Parameter(torch.zeros(1000))]),
            "first": lambda: world.first(1),
        }
        return {"heard": ask[question]()}
    except ToldByAnotherError as error:
        return {"heard of": error.event}


def main() -> None:
    """Ask everything."""
    world = ProcessGroup()
    answers = {
        "rank": world.rank,
        "share 5": world.share([0, 1, 2, 3, 4]),
        "share 1": world.share([7]),
        "share 0": world.share([]),
        "any": [world.any(world.rank == 1), world.any(False)],
        "gather": world.gather({"of": world.rank}),
        "first": world.first(world.rank),
        "await_first": world.await_first(world.rank),
        "gradients": gradients(world),
        "one fails": [told(world, {1}, name) for name in ("any", "gather", "sum", "first")],
        "first fails": told(world, {0}, "any"),
        "both fail": told(world, {0, 1}, "any"),
        "afterwards": world.any(False),
    }
    sys.stdout.write(json.dumps(answers) + "\n")


if __name__ == "__main__":
    main()
