"""What the books cost, beside upstream's: `make bench-log`, or `python -m benchmarks.log --help`.

The same work is done by this checkout ("ours") and by two releases of upstream, each in an environment of its
own with its base install and no more than it needs to log. These are built at the first run under
`benchmarks/.venvs/` (minutes, and a package index is needed); a release whose Python is not there is told as
not measured. Upstream 0.5.18 writes neither Choices nor logprobs, tools or exceptions: its figures are those
of less work.

How it is measured: every value comes from fresh processes that take turns (ours, 0.5.18, 0.5.23, ours, ...),
so that whatever else the machine does meets all of them. A cell is the median over all rounds, of event-loop
gaps the 95th percentile (of 20 logs and more in `log`). Imports and first calls are kept out of the clock by a
small warm-up, except where they are the figure. Input, order and ids come from fixed seeds.

import   `import art`, then TrainableModel, Trajectory and TrajectoryGroup are touched: wall time, modules in
         `sys.modules`, high-water mark of the process.
install  Only with `--install`: site-packages after `pip install`, less a bare environment's. Upstream's base
         needs more packages before it can log.
first    The first `model.log` of a process, of 64 trajectories that stand already.
log      `await model.log(groups)` of 64, 512 and 4096 trajectories (20 messages, 8 tool calls, 7.5 KB of JSON
         each). Processor time is that of all threads; the gap is the longest time between two ticks of a
         5 ms ticker on the same event loop. Then one file is read back into groups, and those of ours are
         compared with what was written by `art.same_groups`, outside the clock.
tokens   The same with 50 logprobs, token ids and prompt ids on each of the 9 Choices.
memory   How far the resident memory rises above its input in a log of 8,000 trajectories, and of 80,000 (a
         list that names the same 8,000 ten times, so that the input stays as small), after a log of 64.
history  `register`, `delete_checkpoints("val/reward", dry_run=True)` with 100 checkpoints, and one `train` of
         a tiny batch with learning-rate scaling, on a history of 1e3, 1e5 and 1e6 rows that is in the file
         cache: in a new process (cold), and after one more appended row. For upstream its best-step query
         alone, which reads everything at every call; it has no scaling.

How to read the table: a ratio below 1 is in our favour. A bar in brackets is wished for, not demanded. A floor
is what the format costs whoever writes it: the finished Arrow table written or read by pyarrow, the bytes or
the lines of the history read by something else. Wall times of a loaded machine are noisy (its load average
stands above the table); ratios less so.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from benchmarks.contestants import MeasurementError, find_contestants
from benchmarks.figures import FIGURES
from benchmarks.session import Session
from benchmarks.table import NOT_MEASURED, Row, as_markdown

_SLOW = "install"


def main() -> None:
    """Measure what the command line asks for, and print one table."""
    arguments = _parser().parse_args()
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    contestants, missing = find_contestants(dict(arguments.venv))
    notes = [f"load average at the start: {load}; {os.cpu_count()} processors"]
    notes += [contestant.describe() for contestant in contestants]
    notes += [f"{peer}: {NOT_MEASURED} ({reason})" for peer, reason in missing.items()]

    chosen = arguments.only or [name for name in FIGURES if name != _SLOW or arguments.install]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(dir=arguments.scratch, prefix="art-bench-") as scratch:
        rounds = arguments.rounds or (2 if arguments.quick else 5)
        session = Session(contestants, rounds, Path(scratch), arguments.quick)
        for name in chosen:
            rows += FIGURES[name](session)
    notes.append(f"{rounds} rounds; median, of event-loop gaps the 95th percentile")
    notes += [f"failed: {failure}" for failure in dict.fromkeys(session.failures)]

    text = "\n".join([*(f"- {note}" for note in notes), "", as_markdown(rows), ""])
    print(text)
    if arguments.out:
        arguments.out.write_text(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="What the books cost, beside upstream's.",
        epilog="What each figure holds, and how to read the table: the head of benchmarks/log.py.",
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=list(FIGURES),
        help="measure this figure; may be repeated",
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, two rounds")
    parser.add_argument("--install", action="store_true", help="the size of an install as well")
    parser.add_argument("--rounds", type=int, help="processes of each contestant (default 5)")
    parser.add_argument("--out", type=Path, help="write the table there as well, as markdown")
    parser.add_argument(
        "--venv",
        action="append",
        default=[],
        type=_name_and_path,
        metavar="NAME=DIR",
        help='use this environment for "ours" or a peer instead of building one',
    )
    parser.add_argument("--scratch", type=Path, help="where to write; 1 GB for the longest history")
    return parser


def _name_and_path(text: str) -> tuple[str, Path]:
    name, _, path = text.partition("=")
    if not path:
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=DIR")
    return name, Path(path).absolute()


if __name__ == "__main__":
    try:
        main()
    except MeasurementError as error:
        sys.exit(f"stopped: {error}")
