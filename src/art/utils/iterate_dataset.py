"""Batches of scenarios over several epochs, in an order that a resumed run finds again."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from art.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

T = TypeVar("T")


@dataclass
class DatasetBatch(Generic[T]):
    """The scenarios of one training step.

    Attributes:
        items: The scenarios.
        step: Number of the batch over all epochs, from 0.
        epoch: Number of the epoch, from 0.
        epoch_step: Number of the batch in its epoch, from 0.
    """

    items: list[T]
    step: int
    epoch: int
    epoch_step: int


def iterate_dataset(
    dataset: Sequence[T],
    groups_per_step: int = 1,
    num_epochs: int = 1,
    initial_step: int = 0,
    use_tqdm: bool = True,
) -> Iterator[DatasetBatch[T]]:
    """Yield batches of a dataset, each epoch shuffled in an order that depends on its number alone.

    Args:
        dataset: All scenarios.
        groups_per_step: Scenarios in a batch; the last batch of an epoch may be smaller.
        num_epochs: How often the dataset is gone through.
        initial_step: Where to start; `await model.get_step()` resumes a run.
        use_tqdm: Show a progress bar.

    Raises:
        ConfigurationError: `groups_per_step` is less than 1.
    """
    if groups_per_step < 1:
        raise ConfigurationError(f"groups_per_step is {groups_per_step}; it must be 1 or more")
    steps_per_epoch = math.ceil(len(dataset) / groups_per_step)
    steps = range(min(initial_step, steps_per_epoch * num_epochs), steps_per_epoch * num_epochs)
    bar = _progress_bar(steps) if use_tqdm and len(dataset) else None
    try:
        order: list[int] = []
        for step in steps:
            epoch, epoch_step = divmod(step, steps_per_epoch)
            if not order or epoch_step == 0:
                order = list(range(len(dataset)))
                random.Random(epoch).shuffle(order)  # noqa: S311 - an order, not a secret
            start = epoch_step * groups_per_step
            items = [dataset[i] for i in order[start : start + groups_per_step]]
            yield DatasetBatch(items=items, step=step, epoch=epoch, epoch_step=epoch_step)
            if bar is not None:
                bar.update(1)
    finally:
        if bar is not None:
            bar.close()


def _progress_bar(steps: range) -> Any:
    from tqdm.auto import tqdm

    return tqdm(initial=steps.start, total=steps.stop, desc="Iterating dataset", unit="batch")
