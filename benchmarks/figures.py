"""The figures: what is measured for each, and the bars that ours is held to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.contestants import OURS
from benchmarks.history_files import HistoryDirectory
from benchmarks.install import measure_install
from benchmarks.session import PEERS_ONLY, Job, Samples, Session, p95
from benchmarks.table import Bar, Row, absolute, relative

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

V1, V2 = "0.5.18", "0.5.23"
MS = 1e3
# The figures on which ours is judged; smaller sizes are told beside them.
_LARGEST_LOG = 4096
_LARGEST_HISTORY = 1_000_000


def imports(session: Session) -> list[Row]:
    """What `import art` costs."""
    session.measure("imports", {}, rounds=1)  # compiles to bytecode, fills the file cache
    found = session.measure("imports", {})
    bare, touched = found.values("bare_s"), found.values("touched_s")
    return [
        Row("import art", "s", bare, (absolute(0.15, "s"),)),
        Row(
            "import art, three names used",
            "s",
            touched,
            (
                relative(touched.get(V1), 1 / 4, V1),
                relative(touched.get(V1), 1 / 10, V1, is_stretch=True),
            ),
        ),
        Row("  modules", "", found.values("modules"), (absolute(900),)),
        Row("  peak memory", "MB", found.values("peak_rss_mb"), (absolute(70, "MB"),)),
    ]


def install(session: Session) -> list[Row]:
    """What a base install takes on disk, and the largest parts of ours."""
    sizes, parts = measure_install(session.scratch)
    return [
        Row("base install", "MB", sizes, (absolute(430, "MB"),)),
        *(Row(f"  of it {name}", "MB", {OURS: size}) for name, size in parts.items() if size >= 1),
    ]


def first_log(session: Session) -> list[Row]:
    """The first log of a process, 64 trajectories: what is loaded only then."""
    options = {"scratch": session.scratch}
    session.measure("first_log", options, rounds=1)
    values = session.measure("first_log", options).values("wall_s", scale=MS)
    return [
        Row("first log of a process (64)", "ms", values, (relative(values.get(V1), 1 / 2, V1),))
    ]


def log(session: Session) -> list[Row]:
    """`model.log` without logprobs, and reading back."""
    rows = []
    for size in (64, 512) if session.is_quick else (64, 512, _LARGEST_LOG):
        found = _measure_log(session, size, logs=-(-20 // session.rounds), read=1)
        rows += _log_rows(found, f"log of {size}", _bars_of_log(found, size))
        rows += _read_rows(found, size, is_judged=size == _LARGEST_LOG)
    return rows


def tokens(session: Session) -> list[Row]:
    """`model.log` with logprobs and token ids. What 0.5.18 writes has neither."""
    rows = []
    for size in (64, 512) if session.is_quick else (64, 512, _LARGEST_LOG):
        # Upstream takes minutes to read the largest back.
        found = _measure_log(session, size, tokens=1, read=int(size < _LARGEST_LOG))
        bars: dict[str, tuple[Bar, ...]] = {}
        if size == _LARGEST_LOG:
            bars["wall_s"] = (relative(found.values("wall_s", scale=MS).get(V2), 1 / 4, V2),)
            bars["size_mb"] = (relative(found.values("size_mb").get(V2), 1 / 2, V2),)
        rows += _log_rows(found, f"log of {size} with tokens", bars)
        if size < _LARGEST_LOG:
            rows += _read_rows(found, size, is_judged=False)
    return rows


def _measure_log(session: Session, size: int, **options: int) -> Samples:
    def check(number: int) -> int:
        return int(number == 0)

    return session.measure(
        "log", {"scratch": session.scratch, "trajectories": size, "check": check, **options}
    )


def _bars_of_log(found: Samples, size: int) -> dict[str, tuple[Bar, ...]]:
    if size != _LARGEST_LOG:
        return {}
    wall, file_size = found.values("wall_s", scale=MS), found.values("size_mb")
    return {
        "wall_s": (
            relative(wall.get(V1), 1.5, V1),
            relative(wall.get(V2), 1 / 2, V2),
            relative(wall.get(V1), 1, V1, is_stretch=True),
        ),
        "gap_s": (absolute(50, "ms"), absolute(15, "ms", is_stretch=True)),
        "size_mb": (relative(file_size.get(V1), 1.3, V1),),
    }


def _log_rows(found: Samples, title: str, bars: dict[str, tuple[Bar, ...]]) -> list[Row]:
    return [
        Row(title, "ms", found.values("wall_s", scale=MS), bars.get("wall_s", ())),
        Row("  processor time", "ms", found.values("cpu_s", scale=MS)),
        Row(
            "  worst event-loop gap, p95",
            "ms",
            found.values("gap_s", scale=MS, reduce=p95),
            bars.get("gap_s", ()),
        ),
        Row("  file", "MB", found.values("size_mb"), bars.get("size_mb", ())),
        Row("  floor: pq.write_table of it", "ms", found.values("floor_write_s", scale=MS)),
    ]


def _read_rows(found: Samples, size: int, *, is_judged: bool) -> list[Row]:
    values = found.values("read_s", scale=MS)
    is_lossless = found.ours("is_lossless")
    told = {True: "ours lossless", False: "ours NOT LOSSLESS"}.get(is_lossless, "not compared")
    return [
        Row(
            f"  read the {size} back ({told})",
            "ms",
            values,
            (relative(values.get(V1), 1 / 2, V1),) if is_judged else (),
        ),
        Row("  floor: pq.read_table of it", "ms", found.values("floor_read_s", scale=MS)),
    ]


def memory(session: Session) -> list[Row]:
    """Memory of one log beyond its input. For ten times as many, the list names the same groups ten times."""
    size = 800 if session.is_quick else 8000
    options = {"scratch": session.scratch, "trajectories": size}
    one = session.measure("memory", options).values("extra_mb")
    ten = session.measure("memory", {**options, "repeats": 10}, only=OURS).values("extra_mb")
    flat = relative(one.get(OURS), 1.5, f"the {size:,}")
    return [
        Row(f"extra memory of a log of {size:,}", "MB", one, (absolute(64, "MB"),)),
        Row(f"extra memory of a log of {10 * size:,}", "MB", ten, (absolute(64, "MB"), flat)),
    ]


def history(session: Session) -> list[Row]:
    """Best step and learning rate from a long history."""
    rows = []
    appends: dict[int, float | None] = {}
    for size in (1000, 100_000) if session.is_quick else (1000, 100_000, _LARGEST_HISTORY):
        directory = HistoryDirectory(session.scratch / f"history-{size}", size)
        ours, upstream, polars = session.measure_together(_history_jobs(session, directory))
        rows += _history_rows(size, ours, upstream, polars)
        rows += _reader_rows(session, directory.path)
        directory.remove()
        appends[size] = ours.values("append_s", scale=MS)[OURS]
    first, *_, last = appends
    flat = relative(appends[first], 1.5, f"at {first:,}")
    return [*rows, Row(f"append a row to {last:,}", "ms", {OURS: appends[last]}, (flat,))]


def _history_jobs(session: Session, directory: HistoryDirectory) -> list[Job]:
    path = {"path": directory.path}
    ours = {
        **path,
        "scratch": session.scratch,
        "base_path": directory.base_path,
        "latest_step": directory.latest_step,
    }
    return [
        Job("history_ours", ours, OURS, after_each=directory.restore),
        Job("history_upstream", path, PEERS_ONLY),
        Job("history_floors", {**path, "reader": "polars"}, OURS),
    ]


def _history_rows(size: int, ours: Samples, upstream: Samples, polars: Samples) -> list[Row]:
    is_judged = size == _LARGEST_HISTORY
    theirs = upstream.values("best_s", scale=MS)
    cold, later = ours.values("cold_s", scale=MS), ours.values("later_s", scale=MS)
    memory_mb = {**ours.values("peak_rss_mb"), **upstream.values("peak_rss_mb")}
    floor = polars.values("wall_s", scale=MS)
    bars_cold = (relative(floor[OURS], 0.7, "polars.read_ndjson"),) if is_judged else ()
    bars_later = (absolute(1, "ms"),) if is_judged else ()

    def part(name: str, key: str) -> Row:
        return Row(f"  of it {name}", "ms", ours.values(key, scale=MS))

    return [
        Row(f"best step and LR of {size:,} rows, cold", "ms", {**cold, **theirs}, bars_cold),
        part("register", "cold_register_s"),
        part("delete_checkpoints(dry_run=True)", "cold_best_s"),
        part("train with scaling", "cold_train_s"),
        Row("  after one more row", "ms", {**later, **theirs}, bars_later),
        part("delete_checkpoints(dry_run=True)", "best_s"),
        part("train with scaling less train without", "rate_s"),
        Row("  peak memory of the process", "MB", memory_mb),
        Row("  floor: polars.read_ndjson", "ms", floor),
    ]


def _reader_rows(session: Session, path: Path) -> list[Row]:
    readers = {
        "bare": ("bare read", OURS),
        "json": ("json.loads of each line", OURS),
        "orjson": ("orjson.loads of each line", None),
    }
    rows = []
    for reader, (name, only) in readers.items():
        options = {"path": path, "reader": reader}
        found = session.measure("history_floors", options, rounds=1, only=only)
        rows.append(Row(f"  floor: {name}", "ms", found.values("wall_s", scale=MS)))
    return rows


FIGURES: dict[str, Callable[[Session], list[Row]]] = {
    "import": imports,
    "install": install,
    "first": first_log,
    "log": log,
    "tokens": tokens,
    "memory": memory,
    "history": history,
}
