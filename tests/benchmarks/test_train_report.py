from __future__ import annotations

import pytest

from benchmarks.train_report import Bar, Result, bars, best_peer, report
from benchmarks.train_workload import CPU_SHAPE, cpu_workload, useful_flops


def result(
    layout: str, tokens_per_s: float, *, share: float = 0.5, error: float | None = 1e-7
) -> Result:
    """A result of ours in a layout, or of the peer where the layout is ""."""
    name = f"ours, {layout}" if layout else "trl"
    return Result(name, bool(layout), layout, tokens_per_s, 1.0, share, 11_272, 900.0, error)


ALL = [
    result("padded", 3000, error=0.0),
    result("packed", 4500),
    result("shared", 9000),
    result("", 2000),
    result("", 3000),
]


def verdicts(results: list[Result]) -> list[str]:
    return [bar.verdict() for bar in bars(results)]


def test_the_faster_micro_batch_of_the_peer_counts() -> None:
    """Ours is compared with the peer at its best."""
    peer = best_peer(ALL)

    assert peer is not None
    assert peer.tokens_per_s == 3000
    assert [bar.value for bar in bars(ALL)[:2]] == [3.0, 1.5]
    assert verdicts(ALL) == ["reached"] * 4


@pytest.mark.parametrize(
    ("index", "worse"),
    [
        (0, result("shared", 7000)),
        (1, result("packed", 4300)),
        (2, result("packed", 4500, share=0.44)),
        (3, result("shared", 9000, error=2e-5)),
    ],
    ids=["shared is slow", "packed is slow", "packed wastes the machine", "shared is wrong"],
)
def test_a_missed_bar_is_told(index: int, worse: Result) -> None:
    """Each bar looks at its own figure, and fails alone."""
    results = [worse if r.layout == worse.layout else r for r in ALL]

    assert [i for i, verdict in enumerate(verdicts(results)) if verdict == "MISSED"] == [index]


def test_what_was_not_measured_is_neither_reached_nor_missed() -> None:
    """Without the peer its ratios are not measured, and the reference's gradient alone proves nothing."""
    ours = [r for r in ALL if r.is_ours]

    assert verdicts(ours) == ["not measured", "not measured", "reached", "reached"]
    assert verdicts(ours[:1]) == ["not measured"] * 4


def test_a_gradient_that_is_not_a_number_misses_its_bar() -> None:
    """NaN compares as false with everything, and is not taken for a small error."""
    assert Bar("error", float("nan"), 1e-5, is_upper=True).verdict() == "MISSED"


def test_rounds_are_summed_up_by_their_medians_and_memory_by_its_peak() -> None:
    """One slow round changes nothing; the share is taken within each process, where clocks agree."""
    workload = cpu_workload()
    work = useful_flops(CPU_SHAPE, 11_272, 3_080, per_weight=4)
    rounds = [
        {"cpu_s": s, "matmul_flops": work / 2 * s, "peak_rss_mb": 100 * s, "positions": 4000}
        for s in (1.0, 2.0, 9.0)
    ]
    found = Result.of("ours, shared", "shared", rounds, workload, CPU_SHAPE, None)

    assert found.is_ours
    assert found.cpu_s == 2.0
    assert found.tokens_per_s == 11_272 / 2
    assert found.share_4n == pytest.approx(2 / 4)
    assert found.peak_rss_mb == 900


def test_the_report_shows_both_ways_of_counting() -> None:
    """The share of the matrix product stands there for LoRA and for full fine-tuning."""
    packed = next(line for line in report(ALL).splitlines() if "ours, packed" in line)

    assert " 50% " in packed
    assert " 75% " in packed
    assert " 1.50x " in packed
