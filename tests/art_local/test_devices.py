from __future__ import annotations

from pathlib import Path

import pytest

from art.errors import ConfigurationError
from art_local import devices
from art_local.devices import default_device, gpu_number, visible_gpus


@pytest.mark.parametrize(
    ("has_driver", "hidden", "torch", "expected"),
    [
        (True, None, "2.13.0+cu130", "cuda"),
        (True, None, "2.13.0", "cuda"),
        (False, None, "2.13.0", "cpu"),
        (True, "", "2.13.0", "cpu"),
        (True, None, "2.13.0+cpu", "cpu"),
    ],
)
def test_a_gpu_is_taken_where_torch_can_use_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    has_driver: bool,
    hidden: str | None,
    torch: str,
    expected: str,
) -> None:
    """The driver is there, the GPUs are not hidden, and torch was not built for CPUs."""
    driver = tmp_path / "nvidiactl"
    if has_driver:
        driver.touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    monkeypatch.setattr(devices, "version", lambda _name: torch)
    assert default_device(driver) == expected


@pytest.mark.parametrize(
    ("numbers", "visible", "expected"),
    [([0, 2], None, "0,2"), ([1], "4,5", "5"), ([0], "GPU-a, GPU-b", "GPU-a"), ([1], "", "1")],
)
def test_gpus_are_counted_among_those_that_are_visible(
    numbers: list[int], visible: str | None, expected: str
) -> None:
    """Number 1 is the second of those that this process sees, not of the machine."""
    assert visible_gpus(numbers, visible) == expected


def test_what_is_no_gpu_is_told() -> None:
    """A number beyond those that are visible, or another kind of device, is an error that says so."""
    assert (gpu_number("cuda"), gpu_number("cuda:3")) == (0, 3)
    with pytest.raises(ConfigurationError, match="GPU 2"):
        visible_gpus([2], "4,5")
    for device in ("cuda:", "cuda:x", "mps"):
        with pytest.raises(ConfigurationError, match="is not known"):
            gpu_number(device)
