"""What the trainers' figures say, and the bars that ours is held to."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.table import NOT_MEASURED
from benchmarks.train_workload import useful_flops

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.train_workload import Shape, Workload

SHARED_OF_TRL = 2.5
PACKED_OF_TRL = 1.45
PACKED_OF_MATMUL = 0.45
GRADIENT_ERROR = 1e-5
_HEADER = [
    "trainer",
    "CPU s a step",
    "tokens/CPU-s",
    "of TRL",
    "of matmul, 4N",
    "of matmul, 6N",
    "positions",
    "gradient error",
    "peak RSS, MB",
]


@dataclass(frozen=True)
class Bar:
    """What a figure is held to.

    Attributes:
        text: The demand.
        value: What was found; None where it was not measured.
        limit: The demand as a number.
        is_upper: Whether the value must not be above the limit; else not below it.
    """

    text: str
    value: float | None
    limit: float
    is_upper: bool = False

    def verdict(self) -> str:
        """Return "reached", "MISSED" or "not measured"."""
        if self.value is None:
            return NOT_MEASURED
        keeps = self.value <= self.limit if self.is_upper else self.value >= self.limit
        return "reached" if keeps else "MISSED"


@dataclass(frozen=True)
class Result:
    """What all rounds found for one trainer.

    Attributes:
        name: Of the trainer.
        is_ours: Whether it is this checkout's.
        layout: Of ours; "" for a peer.
        tokens_per_s: Logical tokens a CPU-second, median.
        cpu_s: CPU-seconds of a step, median.
        share_4n: Useful operations a CPU-second over those of a matrix product in the same process, each weight
            counted four times; median.
        positions: Tokens that went through the model, padding included.
        peak_rss_mb: Largest of all rounds.
        gradient_error: Norm of the difference to the reference gradient over the reference's norm.
    """

    name: str
    is_ours: bool
    layout: str
    tokens_per_s: float
    cpu_s: float
    share_4n: float
    positions: float
    peak_rss_mb: float
    gradient_error: float | None

    @classmethod
    def of(
        cls,
        name: str,
        layout: str,
        rounds: Sequence[Mapping[str, float]],
        workload: Workload,
        shape: Shape,
        gradient_error: float | None,
    ) -> Result:
        """Sum up the rounds of one trainer; `layout` is "" for a peer."""
        flops = useful_flops(shape, workload.num_tokens, workload.num_action_tokens, per_weight=4)
        cpu_s = statistics.median(found["cpu_s"] for found in rounds)
        return cls(
            name,
            bool(layout),
            layout,
            workload.num_tokens / cpu_s,
            cpu_s,
            statistics.median(flops / f["cpu_s"] / f["matmul_flops"] for f in rounds),
            rounds[0]["positions"],
            max(found["peak_rss_mb"] for found in rounds),
            gradient_error,
        )


def best_peer(results: Sequence[Result]) -> Result | None:
    """Return the faster of the peer's micro-batch sizes."""
    peers = [result for result in results if not result.is_ours]
    return max(peers, key=lambda result: result.tokens_per_s, default=None)


def bars(results: Sequence[Result]) -> list[Bar]:
    """Return what ours is held to, with what was found."""
    ours = {result.layout: result for result in results if result.is_ours}
    peer = best_peer(results)

    def of_peer(layout: str) -> float | None:
        if peer is None or layout not in ours:
            return None
        return ours[layout].tokens_per_s / peer.tokens_per_s

    errors = [r.gradient_error for r in ours.values() if r.gradient_error is not None]
    packed = ours["packed"].share_4n if "packed" in ours else None
    return [
        Bar(f"shared >= {SHARED_OF_TRL:g}x TRL", of_peer("shared"), SHARED_OF_TRL),
        Bar(f"packed >= {PACKED_OF_TRL:g}x TRL", of_peer("packed"), PACKED_OF_TRL),
        Bar(f"packed >= {PACKED_OF_MATMUL:.0%} of matmul at 4N", packed, PACKED_OF_MATMUL),
        Bar(
            f"gradient error of each layout <= {GRADIENT_ERROR:g}",
            max(errors) if len(errors) > 1 else None,  # the reference alone proves nothing
            GRADIENT_ERROR,
            is_upper=True,
        ),
    ]


def report(results: Sequence[Result]) -> str:
    """Return the two tables as markdown."""
    peer = best_peer(results)
    lines = [_HEADER, *(_cells(result, peer) for result in results)]
    return "\n\n".join([as_markdown(lines), as_bars(bars(results))])


def as_bars(held: Sequence[Bar]) -> str:
    """Return bars as a table."""
    cells = [[bar.text, _number(bar.value), bar.verdict()] for bar in held]
    return as_markdown([["bar", "found", "verdict"], *cells])


def as_markdown(lines: Sequence[Sequence[str]]) -> str:
    """Return a table whose first line is its head, aligned so that it reads well as plain text too."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    shown = ["| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in lines]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([shown[0], rule, *shown[1:]])


def _cells(result: Result, peer: Result | None) -> list[str]:
    of_peer = "-" if peer is None else f"{result.tokens_per_s / peer.tokens_per_s:.2f}x"
    error = "-" if result.gradient_error is None else f"{result.gradient_error:.1e}"
    return [
        result.name,
        f"{result.cpu_s:.2f}",
        f"{result.tokens_per_s:,.0f}",
        of_peer,
        f"{result.share_4n:.0%}",
        f"{1.5 * result.share_4n:.0%}",
        f"{result.positions:,.0f}",
        error,
        f"{result.peak_rss_mb:,.0f}",
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
