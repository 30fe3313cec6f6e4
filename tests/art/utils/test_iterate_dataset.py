from __future__ import annotations

import random

import pytest

from art.errors import ConfigurationError
from art.utils import iterate_dataset


def test_every_epoch_covers_the_dataset_once_in_an_order_of_its_own() -> None:
    """Steps count through, epoch steps start anew, and the last batch of an epoch may be smaller."""
    batches = list(iterate_dataset(list("abcde"), groups_per_step=2, num_epochs=2, use_tqdm=False))
    assert [(b.step, b.epoch, b.epoch_step) for b in batches] == [
        (0, 0, 0),
        (1, 0, 1),
        (2, 0, 2),
        (3, 1, 0),
        (4, 1, 1),
        (5, 1, 2),
    ]
    epochs = [[item for b in batches if b.epoch == epoch for item in b.items] for epoch in (0, 1)]
    assert [sorted(epoch) for epoch in epochs] == [list("abcde")] * 2
    assert epochs[0] != epochs[1]
    assert len(batches[2].items) == 1


def test_the_order_is_the_one_of_a_generator_seeded_with_the_epoch() -> None:
    """Runs that began with upstream's iterator resume at the same scenarios."""
    expected = list(range(10))
    random.Random(0).shuffle(expected)
    [batch] = iterate_dataset(list(range(10)), groups_per_step=10, use_tqdm=False)
    assert batch.items == expected


def test_a_resumed_run_gets_the_same_batches() -> None:
    """Starting in the middle of an epoch gives what the full run gives from there."""
    full = list(iterate_dataset(list(range(7)), 2, 3, use_tqdm=False))
    for start in range(len(full) + 2):
        assert list(iterate_dataset(list(range(7)), 2, 3, start, use_tqdm=False)) == full[start:]


def test_the_global_random_state_is_not_touched() -> None:
    """Shuffling uses a generator of its own."""
    state = random.getstate()
    list(iterate_dataset([1, 2, 3], use_tqdm=False))
    assert random.getstate() == state


def test_an_empty_dataset_gives_no_batch() -> None:
    """Nothing to iterate over is no error."""
    assert list(iterate_dataset([], num_epochs=3)) == []


def test_a_bar_on_stderr_is_closed_when_the_consumer_stops(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The bar's line ends, also where iteration is broken off."""
    batches = iterate_dataset([1, 2, 3], initial_step=1)
    next(batches)
    del batches
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "1/3" in shown.err
    assert shown.err.endswith("\n")


def test_a_batch_must_hold_something() -> None:
    """Zero groups a step are a configuration error."""
    with pytest.raises(ConfigurationError, match="groups_per_step is 0"):
        next(iterate_dataset([1], groups_per_step=0))
