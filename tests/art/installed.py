"""Distributions that are installed for one test: real metadata on the path, as pip would leave it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def install(
    site: Path, distribution: str, group: str, entry_points: dict[str, str], **modules: str
) -> None:
    """Write a distribution's metadata and modules into a folder that is on the path.

    Args:
        site: The folder.
        distribution: Name of the distribution.
        group: Group of its entry points.
        entry_points: Its entry points, `{name: "module:attribute"}`.
        modules: Source of its modules by name.
    """
    info = site / f"{distribution.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\nProvides-Extra: heavy\n"
    )
    lines = [f"[{group}]", *(f"{name} = {value}" for name, value in entry_points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines))
    for name, source in modules.items():
        (site / f"{name}.py").write_text(source)
