from __future__ import annotations

from typing import TYPE_CHECKING

import art
from tests.art.factories import group, model

if TYPE_CHECKING:
    from pathlib import Path


async def test_the_first_log_sweeps_what_killed_writers_left(tmp_path: Path) -> None:
    """Half-written files of processes that were killed do not fill the disk; no other file is touched."""
    agent = model(tmp_path)
    await agent.log([group(1.0)], step=3)
    root = art.model_dir(agent)
    half = [
        root / ".state.json.17.0badcafe.tmp",
        root / "trajectories" / "val" / ".0002.parquet.17.0badcafe.tmp",
    ]
    mine = [root / "notes.tmp", root / ".env", root / "trajectories" / "val" / "mine.tmp"]
    for path in (*half, *mine):
        path.write_bytes(b"half")

    await model(tmp_path).log([group(1.0)], step=3)

    assert not any(path.exists() for path in half)
    assert all(path.exists() for path in mine)
    assert (root / "trajectories" / "val" / "0003.parquet").exists()
