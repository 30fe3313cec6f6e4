"""Runs the measurements in rounds, the contestants one after another in each, and sums them up."""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from benchmarks.contestants import OURS, Contestant, MeasurementError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

Reduce: TypeAlias = "Callable[[Sequence[float]], float]"


PEERS_ONLY = "peers"  # takes part: all but ours


@dataclass(frozen=True)
class Samples:
    """What all processes of one measurement found: by contestant, one dict a process."""

    by_contestant: Mapping[str, Sequence[Mapping[str, Any]]]

    def values(
        self, key: str, *, scale: float = 1.0, reduce: Reduce = statistics.median
    ) -> dict[str, float | None]:
        """Return one number for each contestant: the median, or what `reduce` makes of all its values."""
        return {
            name: self._value(processes, key, scale, reduce)
            for name, processes in self.by_contestant.items()
        }

    def ours(self, key: str) -> Any:
        """Return the first value of ours, None without one."""
        return next((p[key] for p in self.by_contestant.get(OURS, ()) if key in p), None)

    @staticmethod
    def _value(
        processes: Sequence[Mapping[str, Any]], key: str, scale: float, reduce: Reduce
    ) -> float | None:
        found: list[float] = []
        for process in processes:
            value = process.get(key, [])
            found += value if isinstance(value, list) else [value]
        return scale * reduce(found) if found else None


def p95(values: Sequence[float]) -> float:
    """Return the 95th percentile: of 20 values the second largest."""
    ordered = sorted(values)
    return ordered[max(0, -(-95 * len(ordered) // 100) - 1)]


@dataclass(frozen=True)
class Job:
    """One measurement of `benchmarks.workload`, and who takes part.

    Attributes:
        measurement: Its name.
        options: Its options. A callable is called with the round's number for its value.
        only: The one contestant that takes part, or `PEERS_ONLY`; all by default.
        after_each: Called after each process.
    """

    measurement: str
    options: Mapping[str, object]
    only: str | None = None
    after_each: Callable[[], None] | None = None

    def is_for(self, contestant: Contestant) -> bool:
        """Tell whether a contestant takes part."""
        if self.only == PEERS_ONLY:
            return contestant.name != OURS
        return self.only is None or contestant.name == self.only

    def __str__(self) -> str:
        simple = {k: v for k, v in self.options.items() if isinstance(v, (int, str))}
        return " ".join([self.measurement, *(f"{k}={v}" for k, v in simple.items())])


@dataclass
class Session:
    """One run of the benchmark.

    Attributes:
        contestants: In the order in which they take turns.
        rounds: Processes of each contestant and measurement.
        scratch: Directory for what is written.
        is_quick: Small sizes only.
    """

    contestants: Sequence[Contestant]
    rounds: int
    scratch: Path
    is_quick: bool
    failures: list[str] = field(default_factory=list)

    def measure(
        self,
        measurement: str,
        options: Mapping[str, object],
        *,
        only: str | None = None,
        rounds: int | None = None,
    ) -> Samples:
        """Measure one job in rounds; see `Job` and `measure_together`.

        Args:
            measurement: Of the job.
            options: Of the job.
            only: Of the job.
            rounds: If other than the session's.
        """
        (samples,) = self.measure_together([Job(measurement, options, only)], rounds)
        return samples

    def measure_together(self, jobs: Sequence[Job], rounds: int | None = None) -> list[Samples]:
        """Measure in rounds: A B C, A B C, ... each in a fresh process. Jobs to be compared go in together."""
        found: list[dict[str, list[dict[str, Any]]]] = [
            {c.name: [] for c in self.contestants if job.is_for(c)} for job in jobs
        ]
        total = rounds or self.rounds
        for number in range(total):
            for job, samples in zip(jobs, found, strict=True):
                for contestant in filter(job.is_for, self.contestants):
                    print(f"[{number + 1}/{total}] {contestant.name}: {job}", file=sys.stderr)
                    samples[contestant.name] += self._measure_once(job, contestant, number)
        return [Samples(samples) for samples in found]

    def _measure_once(self, job: Job, contestant: Contestant, number: int) -> list[dict[str, Any]]:
        options = {k: v(number) if callable(v) else v for k, v in job.options.items()}
        try:
            return [contestant.measure(job.measurement, **options)]
        except MeasurementError as error:
            self.failures.append(f"{job.measurement}: {error}")
            print(f"  failed: {error}", file=sys.stderr)
            return []
        finally:
            if job.after_each is not None:
                job.after_each()
