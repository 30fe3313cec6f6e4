"""Build the wheel, install it into a fresh environment without torch, and use it from outside the checkout.

A checkout can hide a broken wheel: a package at the wrong place, data files that are missing, an import that
only works here. So the wheel itself is tried. So is the adapter of a third party, which is built, installed and
certified there as its author would do it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOY = ROOT / "examples" / "third_party_adapter"
PACKAGES = {"art", "art_local", "art_tinker", "art_serverless", "art_conformance"}

SMOKE_TEST = """
import asyncio, logging, sys
import art
from art.testing import InMemoryBackend

assert "site-packages" in art.__file__, art.__file__


async def main() -> None:
    model = art.TrainableModel(name="m", project="p", base_model="none", base_path="books")
    await model.register(InMemoryBackend())
    group = art.TrajectoryGroup([
        art.Trajectory(messages_and_choices=[{"role": "user", "content": "hi"}], reward=r) for r in (0.0, 1.0)
    ])
    result = await model.train([group], art.TrainConfig(learning_rate=1e-4))
    assert result.step == 1, result
    await model.log([group], split="val")
    assert await model.get_step() == 1
    assert (art.model_dir(model) / "trajectories" / "train" / "0000.parquet").exists()
    assert (art.model_dir(model) / "history.jsonl").read_text().count("\\n") == 3
    await model.delete_checkpoints()
    await model.close()


asyncio.run(main())
assert "torch" not in sys.modules

from art.local import LocalBackend
try:
    LocalBackend()
except ImportError as error:
    assert 'pip install "art-rl[local]"' in str(error), error
else:
    raise AssertionError("LocalBackend came up without torch")
print("smoke test passed")
"""


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command and return its output; its failure ends this script with what it said."""
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def check_contents(wheel: Path) -> None:
    """Check the top-level names of the wheel, the typing markers, and what is found by path."""
    names = zipfile.ZipFile(wheel).namelist()
    top_level = {name.split("/")[0] for name in names if ".dist-info" not in name.split("/")[0]}
    assert top_level == PACKAGES, f"top-level names of the wheel: {sorted(top_level)}"
    for package in PACKAGES:
        assert f"{package}/py.typed" in names, f"{package}/py.typed is missing from the wheel"
    for part in (
        "base_models/letters/model.safetensors",
        "base_models/guess/model.safetensors",
        "vllm_side/launch.py",
    ):
        assert f"art_local/{part}" in names, f"art_local/{part} is missing from the wheel"


def check_message(cwd: Path, python: Path, *arguments: str, extra: str, status: int) -> None:
    """Check that what needs an extra says so in one line."""
    done = subprocess.run(
        [python, "-m", *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )
    message = done.stderr.strip()
    assert done.returncode == status, message
    assert message.count("\n") == 0, f"a single line was expected:\n{message}"
    assert f'pip install "art-rl[{extra}]"' in message, message


def certify_third_party(python: Path, outside: Path) -> None:
    """Build and install the adapter of a third party, and certify it in all three ways."""
    source = outside / "toy"
    shutil.copytree(TOY, source)
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", source, cwd=outside)
    (wheel,) = (source / "dist").glob("*.whl")
    shutil.rmtree(source / "src")
    run(python, "-m", "pip", "install", "--quiet", f"{wheel}[conformance]", "pytest", cwd=outside)
    target = "art_toy.conformance:adapter"
    certified = run(python.with_name("art"), "conformance", target, "--out", "report", cwd=outside)
    assert "CERTIFIED at level core" in certified, certified
    assert (outside / "report" / "conformance-badge.json").exists()
    suite = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs", "art_conformance")
    certified = run(python, *suite, f"--art-adapter={target}", cwd=outside)
    assert "CERTIFIED at level core" in certified, certified
    found = run(
        python, "-c", "import art.registry; print(art.registry.backend_names())", cwd=outside
    )
    assert "'toy'" in found, found
    print(certified.strip().splitlines()[-2])


def main() -> None:
    """Build, check, install and use the wheel."""
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    # The environment that runs this has hatchling; building in it needs no download.
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, ROOT, cwd=ROOT)
    (wheel,) = dist.glob("*.whl")
    check_contents(wheel)
    with tempfile.TemporaryDirectory() as directory:
        outside = Path(directory)
        venv.create(outside / "venv", with_pip=True)
        python = outside / "venv" / "bin" / "python"
        run(python, "-m", "pip", "install", "--quiet", wheel, cwd=outside)
        print(run(python, "-c", SMOKE_TEST, cwd=outside).strip())
        print(run(python, "-m", "art", "--help", cwd=outside).strip())
        check_message(outside, python, "art", "demo", extra="local", status=1)
        backend = "art.testing:InMemoryBackend"
        check_message(outside, python, "art_conformance", backend, extra="conformance", status=2)
        certify_third_party(python, outside)
    print(f"wheel checked: {wheel.name}, {wheel.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
