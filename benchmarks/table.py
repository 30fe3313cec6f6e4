"""The rows of the result, their bars, and the one table that shows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.contestants import OURS, PEERS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NOT_MEASURED = "not measured"
_HEADER = ["figure", OURS, *PEERS, *(f"ours / {p}" for p in PEERS), "bar", "verdict"]


@dataclass(frozen=True)
class Bar:
    """What a figure must not exceed.

    Attributes:
        text: As the table shows it.
        limit: In the unit of the row; None where what it relates to was not measured.
        is_stretch: Wished for, not demanded.
    """

    text: str
    limit: float | None
    is_stretch: bool = False


@dataclass(frozen=True)
class Row:
    """One figure of all contestants.

    Attributes:
        figure: What was measured.
        unit: "s", "ms", "MB", or "" for a count.
        values: By contestant; None where it was not measured.
        bars: What ours is held to; none for a floor, and where a figure is told for what it is.
    """

    figure: str
    unit: str
    values: Mapping[str, float | None]
    bars: tuple[Bar, ...] = ()

    def cells(self) -> list[str]:
        """Return the cells of the table's line."""
        figure = f"{self.figure}, {self.unit}" if self.unit else self.figure
        values = [_number(self.values.get(name)) for name in (OURS, *PEERS)]
        ratios = [_ratio(self.values.get(OURS), self.values.get(name)) for name in PEERS]
        bar = "; ".join(f"({b.text})" if b.is_stretch else b.text for b in self.bars)
        return [figure, *values, *ratios, bar, self.verdict()]

    def verdict(self) -> str:
        """Return whether ours keeps its bars: "reached", "MISSED" or "not measured", empty without bars."""
        ours = self.values.get(OURS)
        if not self.bars:
            return ""
        if ours is None:
            return NOT_MEASURED
        demanded = [_keeps(ours, bar) for bar in self.bars if not bar.is_stretch]
        if False in demanded:
            return "MISSED"
        if None in demanded:
            return NOT_MEASURED if not any(demanded) else "reached where measured"
        wished = [_keeps(ours, bar) for bar in self.bars if bar.is_stretch]
        return "reached, stretch too" if wished and all(wished) else "reached"


def absolute(limit: float, unit: str = "", *, is_stretch: bool = False) -> Bar:
    """Return the bar "no more than so much"."""
    return Bar(f"<= {limit:g} {unit}".strip(), limit, is_stretch)


def relative(reference: float | None, factor: float, name: str, *, is_stretch: bool = False) -> Bar:
    """Return the bar "no more than so many times the value of `name`", which is `reference`."""
    limit = None if reference is None else factor * reference
    return Bar(f"<= {factor:g}x {name}", limit, is_stretch)


def _keeps(value: float, bar: Bar) -> bool | None:
    return None if bar.limit is None else value <= bar.limit


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _ratio(ours: float | None, peer: float | None) -> str:
    return "-" if ours is None or not peer else f"{ours / peer:.2g}x"


def as_markdown(rows: Sequence[Row]) -> str:
    """Return the table, aligned so that it reads well as plain text too."""
    lines = [_HEADER, *(row.cells() for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(_HEADER))]
    shown = ["| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in lines]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([shown[0], rule, *shown[1:]])
