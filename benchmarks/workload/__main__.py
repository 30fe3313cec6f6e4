"""Does one measurement and prints it; see the package's docstring."""

# Imports little: whatever is imported here is not seen by the measurement of imports.
import sys
from importlib import import_module

MEASUREMENTS = {
    "imports": "imports:measure_imports",
    "first_log": "logs:measure_first_log",
    "log": "logs:measure_log",
    "memory": "logs:measure_memory",
    "history_ours": "history:measure_ours",
    "history_upstream": "history:measure_upstream",
    "history_floors": "history:measure_floors",
}


def main() -> None:
    """Run the measurement that the command line names."""
    name, *pairs = sys.argv[1:]
    options = dict(pair.split("=", 1) for pair in pairs)
    arguments = {key: int(text) if text.isdigit() else text for key, text in options.items()}
    module, function = MEASUREMENTS[name].split(":")
    result = getattr(import_module(f"benchmarks.workload.{module}"), function)(**arguments)

    import json

    print(json.dumps(result))


if __name__ == "__main__":
    main()
