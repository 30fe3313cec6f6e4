"""The backend that the documentation shows is one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.art.factories import group, model

PAGE = Path(__file__).resolve().parents[2] / "docs" / "writing-a-backend.md"


async def test_the_backend_of_the_page_trains_and_deletes(tmp_path: Path) -> None:
    """Both spellings of training and a deletion work with it as it stands."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, str(PAGE), "exec"), names)
    backend, agent = names["MyBackend"](), model(tmp_path)
    await agent.register(backend)

    assert (await agent.train([group(0.0, 1.0)])).metrics["loss"] == 0.0
    assert (await backend.train(agent, [group(0.0, 1.0)])).step == 2
    await agent.delete_checkpoints(None)
