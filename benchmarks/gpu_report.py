"""What the trainers' figures on a GPU say, and the bars that ours is held to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.train_report import Bar, as_bars, as_markdown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PLAIN, PACKED, SHARED = "plain loop", "packed", "shared"
_LARGE = "qwen3-4b"
_HEADER = [
    "model",
    "trainer",
    "s a step",
    "first step, s",
    "logical tokens/s",
    "physical tokens/s",
    "of plain",
    "of matmul, 4N",
    "of it computed",
    "recomputes",
    "gradient error",
    "peak, GiB",
]


@dataclass(frozen=True)
class Result:
    """What was found for one trainer on one model.

    Attributes:
        model: Name of the shape.
        trainer: `PLAIN`, `PACKED` or `SHARED`.
        step_s: Wall-clock seconds of a step, median without the first.
        first_step_s: Of the first, which compiles.
        logical_tokens_per_s: Tokens of all trajectories, each counted whole.
        physical_tokens_per_s: Positions that the model was run on, padding included.
        share_4n: Useful operations a second over the matmul rate, by logical tokens.
        computed_share_4n: The same by physical tokens.
        recomputes: Whether parts of the forward pass are computed again, to save memory.
        peak_gib: Most memory that tensors took on the GPU; 0 on a CPU.
        gradient_error: Norm of the difference to the plain loop's gradient over that one's norm; None for it, and without it.
    """

    model: str
    trainer: str
    step_s: float
    first_step_s: float
    logical_tokens_per_s: float
    physical_tokens_per_s: float
    share_4n: float
    computed_share_4n: float
    recomputes: bool
    peak_gib: float
    gradient_error: float | None = None


def bars(results: Sequence[Result]) -> list[Bar]:
    """Return what ours is held to on the larger model, with what was found."""
    found = {result.trainer: result for result in results if result.model == _LARGE}
    packed, shared = found.get(PACKED), found.get(SHARED)
    errors = [r.gradient_error for r in found.values() if r.trainer != PLAIN]
    known = [error for error in errors if error is not None]
    return [
        Bar(
            "packed >= 9,000 tokens/s (4B)",
            packed.logical_tokens_per_s if packed else None,
            9000,
        ),
        Bar(
            "shared >= 1.6x packed, logical tokens (4B)",
            shared.logical_tokens_per_s / packed.logical_tokens_per_s
            if packed and shared
            else None,
            1.6,
        ),
        Bar(
            "peak of packed and shared <= 40 GiB (4B)",
            max(packed.peak_gib, shared.peak_gib) if packed and shared else None,
            40,
            is_upper=True,
        ),
        Bar("gradient error <= 0.03 (4B)", max(known, default=None), 0.03, is_upper=True),
    ]


def report(results: Sequence[Result], missing: Mapping[str, str]) -> str:
    """Return the tables as markdown, and why what is missing was not measured."""
    plain = {r.model: r.logical_tokens_per_s for r in results if r.trainer == PLAIN}
    lines = [_HEADER, *(_cells(result, plain.get(result.model)) for result in results)]
    told = [f"- {what}: not measured ({why})" for what, why in missing.items()]
    parts = [as_markdown(lines), as_bars(bars(results)), "\n".join(told)]
    return "\n\n".join(part for part in parts if part)


def _cells(result: Result, plain: float | None) -> list[str]:
    error = result.gradient_error
    return [
        result.model,
        result.trainer,
        f"{result.step_s:.3g}",
        f"{result.first_step_s:.3g}",
        f"{result.logical_tokens_per_s:,.0f}",
        f"{result.physical_tokens_per_s:,.0f}",
        "-" if plain is None else f"{result.logical_tokens_per_s / plain:.2f}x",
        f"{result.share_4n:.0%}",
        f"{result.computed_share_4n:.0%}",
        "yes" if result.recomputes else "no",
        "-" if error is None else f"{error:.1e}",
        f"{result.peak_gib:.1f}",
    ]
