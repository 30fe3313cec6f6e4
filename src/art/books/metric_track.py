"""What one metric was at each step, kept up row by row in a few bytes a step."""

from __future__ import annotations

import copy
import operator
from array import array
from bisect import bisect_left
from itertools import islice
from typing import TYPE_CHECKING

from art.rules.learning_rate import Trend
from art.rules.statistics import merge_means

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class MetricTrack:
    """The weighted mean of one metric for each step that has it.

    It depends on the rows and their order alone, not on how many came at a time.
    """

    def __init__(self) -> None:
        # Side by side, by ascending step. No Python object per step: a long run has millions.
        self._steps = array("q")
        self._means = array("d")
        self._weights = array("d")
        self._trend: Trend | None = None  # made when it is asked for, and kept up from then on

    def add(self, steps: Sequence[int], values: Sequence[float], weights: Sequence[float]) -> None:
        """Add rows in the order of the file. Late rows of a much earlier step cost more."""
        if self._follow(steps):
            # An array takes another array as a whole, and a list item by item.
            self._steps.extend(array("q", steps))
            self._means.extend(array("d", values))
            self._weights.extend(array("d", weights))
            if self._trend is not None:
                self._trend = self._trend.plus(steps, values)
        else:
            for step, value, weight in zip(steps, values, weights, strict=True):
                self._add_row(step, value, weight)

    def _follow(self, steps: Sequence[int]) -> bool:
        """Whether the steps ascend and are higher than all so far."""
        if not steps or (self._steps and steps[0] <= self._steps[-1]):
            return False
        return all(map(operator.lt, steps, islice(steps, 1, None)))

    def _add_row(self, step: int, value: float, weight: float) -> None:
        i = self._find(step)
        trend = self._trend_with(i, step, value, weight)
        if self._has(i, step):
            self._means[i] = merge_means(self._means[i], self._weights[i], value, weight)
            self._weights[i] += weight
        else:
            self._steps.insert(i, step)
            self._means.insert(i, value)
            self._weights.insert(i, weight)
        self._trend = trend

    def _find(self, step: int) -> int:
        return bisect_left(self._steps, step)

    def _has(self, i: int, step: int) -> bool:
        return i < len(self._steps) and self._steps[i] == step

    def _trend_with(self, i: int, step: int, value: float, weight: float) -> Trend | None:
        """Return the trend with one more row, None where it must be made anew."""
        if self._trend is None or step <= self._trend.first:
            return None
        if not self._has(i, step):
            return self._trend.plus([step], [value])
        old = self._means[i]
        new = merge_means(old, self._weights[i], value, weight)
        return self._trend.replace(step, old, new)

    def means(self, steps: Iterable[int] | None = None) -> dict[int, float]:
        """Return the mean at each of these steps that has one, or at every step, ascending."""
        if steps is None:
            return dict(zip(self._steps, self._means, strict=True))
        found = ((step, bisect_left(self._steps, step)) for step in steps)
        return {step: self._means[i] for step, i in found if self._has(i, step)}

    def trend(self) -> Trend | None:
        """Return the straight line through the means, None if there are none."""
        if self._trend is None and self._steps:
            self._trend = Trend.of(self._steps, self._means)
        return self._trend

    def trend_with(self, step: int, value: float, weight: float) -> Trend | None:
        """Return the line as it would be with one more row."""
        if self.trend() is not None:
            trend = self._trend_with(self._find(step), step, value, weight)
            if trend is not None:
                return trend
        track = copy.deepcopy(self)
        track.add([step], [value], [weight])
        return track.trend()
