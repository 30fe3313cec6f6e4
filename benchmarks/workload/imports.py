"""What it costs to import the package. Nothing but this may be imported before the clock starts."""

import sys
import time

_NAMES = ("TrainableModel", "Trajectory", "TrajectoryGroup")


def measure_imports() -> dict[str, float]:
    """Import the package, then touch the names that every script uses."""
    start = time.perf_counter()
    import art

    bare_s = time.perf_counter() - start
    bare_modules = len(sys.modules)
    for name in _NAMES:
        getattr(art, name)
    touched_s = time.perf_counter() - start
    modules = len(sys.modules)

    from benchmarks.workload.measure import peak_rss_mb

    return {
        "bare_s": bare_s,
        "bare_modules": bare_modules,
        "touched_s": touched_s,
        "modules": modules,
        "peak_rss_mb": peak_rss_mb(),
    }
