from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art.errors import ConfigurationError
from art.rules.retention import StepInfo, choose

if TYPE_CHECKING:
    import random


def infos(metrics: dict[int, float | None], latest: int | None = None) -> list[StepInfo]:
    newest = max(metrics) if latest is None else latest
    return [StepInfo(step, metric, step == newest) for step, metric in metrics.items()]


def test_best_and_latest_are_kept() -> None:
    """Everything but the best and the latest goes, each with its reason."""
    result = choose(infos({1: 0.1, 2: 0.9, 3: 0.5, 4: 0.2}))
    assert result.kept == [2, 4]
    assert result.deleted == [1, 3]
    assert result.best == 2
    assert result.reasons == {
        1: "0.1 is not above 0.9 of step 2",
        2: "the best, with 0.9",
        3: "0.5 is not above 0.9 of step 2",
        4: "the latest",
    }


def test_a_low_metric_can_be_the_good_one() -> None:
    """With mode "min" the lowest is the best."""
    assert choose(infos({1: 0.1, 2: 0.9, 3: 0.5}), mode="min").kept == [1, 3]


def test_c061_a_metric_that_was_never_recorded_deletes_nothing() -> None:
    """Where no existing step has the metric none is known to be worse, so all stay."""
    steps = [*infos({1: None, 2: None, 3: None}), StepInfo(0, 0.9, exists=False)]
    result = choose(steps)
    assert result.kept == [1, 2, 3]
    assert result.deleted == []
    assert result.best is None


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_c067_nonfinite_metrics_are_never_best(bad: float) -> None:
    """NaN and infinities do not win, and where nothing else is there, nothing is deleted."""
    assert choose(infos({1: bad, 2: 0.5, 3: 0.1})).kept == [2, 3]
    assert choose(infos({1: bad, 2: bad, 3: bad})).kept == [1, 2, 3]


def test_ties_go_to_the_newest() -> None:
    """Equal metrics keep the newest step in either mode, also 0.0 and -0.0."""
    assert choose(infos({1: 0.5, 2: 0.5, 3: 0.1})).best == 2
    assert choose(infos({1: 0.5, 2: 0.5, 3: 0.9}), mode="min").best == 2
    assert choose(infos({1: 0.0, 2: -0.0, 3: -1.0})).best == 2


def test_c072_steps_past_9999_are_ordered_as_numbers() -> None:
    """Step 10000 is newer than step 9999."""
    result = choose([StepInfo(10_000, 0.5), StepInfo(9_999, 0.5), StepInfo(2, 0.1)])
    assert result.kept == [10_000]
    assert result.best == 10_000


def test_the_best_is_sought_among_steps_that_exist() -> None:
    """A better step whose checkpoint is gone does not cost the best that is left."""
    steps = [StepInfo(1, 0.9, exists=False), *infos({2: 0.5, 3: 0.4, 4: 0.1})]
    assert choose(steps).kept == [2, 4]


def test_the_newest_unscored_steps_can_be_kept() -> None:
    """Steps whose evaluation is still running stay as far as asked for; by default they go."""
    steps = infos({1: None, 2: 0.9, 3: None, 4: None, 5: 0.1})
    assert choose(steps).kept == [2, 5]
    assert choose(steps, keep_unscored=1).kept == [2, 4, 5]
    assert choose(steps, keep_unscored=9).kept == [1, 2, 3, 4, 5]


def test_only_the_latest_can_be_kept() -> None:
    """Without a metric to look at, only the latest stays."""
    result = choose(infos({1: 0.9, 2: None, 3: 0.1}), only_latest=True)
    assert result.kept == [3]
    assert result.best is None


def test_the_latest_is_the_step_where_the_model_stands() -> None:
    """A step above the current one (a life that is over) is not the latest."""
    assert choose(infos({1: 0.9, 2: 0.1, 3: 0.2}, latest=2)).kept == [1, 2]


def test_c066_a_rule_of_the_users_own_decides() -> None:
    """A rule sees the existing steps in order, may name unknown ones, and cannot lose the latest."""
    seen: list[int] = []

    def top_two(steps: list[StepInfo]) -> list[int | StepInfo]:
        seen.extend(info.step for info in steps)
        best = sorted(steps, key=lambda info: info.metric or 0.0)[-2:]
        return [best[0], best[1].step, 999]

    steps = [*infos({4: 0.1, 1: 0.9, 2: 0.8, 3: 0.7}), StepInfo(0, 1.0, exists=False)]
    result = choose(steps, retention=top_two)
    assert seen == [1, 2, 3, 4]
    assert result.kept == [1, 2, 4]
    assert result.deleted == [3]


@pytest.mark.parametrize("returned", [None, 3, ["3"], [None], [True, False]])
def test_a_rule_that_returns_no_steps_is_refused(returned: Any) -> None:
    """A mistake in the rule deletes nothing."""
    with pytest.raises(ConfigurationError, match="retention rule"):
        choose(infos({1: 0.1, 2: 0.2}), retention=lambda steps: returned)


def test_unknown_options_are_refused() -> None:
    """A mode or a count that makes no sense is an error."""
    with pytest.raises(ConfigurationError, match="mode"):
        choose([], mode="best")  # type: ignore[arg-type] # the mistake under test
    with pytest.raises(ConfigurationError, match="keep_unscored"):
        choose([], keep_unscored=-1)


def test_no_checkpoints_are_no_work() -> None:
    """With nothing there, nothing is kept or deleted."""
    assert choose([]).kept == []
    assert choose([StepInfo(1, 0.5, exists=False)]).deleted == []


step_lists = st.dictionaries(
    st.integers(0, 20_000), st.one_of(st.none(), st.floats()), min_size=1, max_size=12
)


@given(step_lists, st.sampled_from(["max", "min"]), st.integers(0, 3), st.randoms())
def test_a_choice_is_complete_and_safe(
    metrics: dict[int, float | None], mode: Any, keep_unscored: int, rng: random.Random
) -> None:
    """Each step is kept or deleted with a reason, the latest stays, and only worse or unscored steps go."""
    result = choose(infos(metrics), mode=mode, keep_unscored=keep_unscored)
    assert sorted(result.kept + result.deleted) == sorted(metrics)
    assert set(result.reasons) == set(metrics)
    assert max(metrics) in result.kept
    if result.best is None:
        assert result.deleted == []
    else:
        best = metrics[result.best]
        assert best is not None
        for step in result.deleted:
            value = metrics[step]
            is_worse = value is None or not math.isfinite(value)
            if not is_worse:
                assert value is not None
                is_worse = value <= best if mode == "max" else value >= best
            assert is_worse
    shuffled = infos(metrics)
    rng.shuffle(shuffled)
    assert choose(shuffled, mode=mode, keep_unscored=keep_unscored) == result


@given(step_lists, st.integers(0, 3))
def test_a_second_call_deletes_nothing_more(
    metrics: dict[int, float | None], keep_unscored: int
) -> None:
    """Choosing again among what was kept changes nothing."""
    kept = choose(infos(metrics), keep_unscored=keep_unscored).kept
    again = choose(infos({step: metrics[step] for step in kept}), keep_unscored=keep_unscored)
    assert again.kept == kept


@given(step_lists, st.sampled_from(["max", "min"]), st.sets(st.integers(0, 20_000)))
def test_the_best_that_exists_is_never_deleted(
    metrics: dict[int, float | None], mode: Any, gone: set[int]
) -> None:
    """Of the checkpoints that exist, one with the best finite metric stays, the newest of equals."""
    steps = [
        StepInfo(step, metric, step == max(metrics), exists=step not in gone)
        for step, metric in metrics.items()
    ]
    result = choose(steps, mode=mode)
    finite = {
        info.step: info.metric
        for info in steps
        if info.exists and info.metric is not None and math.isfinite(info.metric)
    }
    assert not gone & {*result.kept, *result.deleted}
    if finite:
        top = (max if mode == "max" else min)(finite.values())
        assert result.best == max(step for step, metric in finite.items() if metric == top)
        assert result.best in result.kept
    else:
        assert (result.best, result.deleted) == (None, [])
