"""The examples of the page on reading logs are run on real logs, and what they find is what is in there."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from tests.docs.example_logs import make_logs

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.process

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reading-the-logs.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
DATASETS = [block for block in BLOCKS if "load_dataset" in block]

# What follows the example of HF datasets in its child process. That library must find all it needs on the disk.
GUARD = """
import sys
def refuse(event, args):
    if event == "socket.connect":
        raise PermissionError(f"{event} {args}")
sys.addaudithook(refuse)
"""
REPORT = "import json; print(json.dumps([conversations[:]['messages'], dataset['train'].num_rows]))"


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What the examples of the page define, run in order where a run has left its logs."""
    with contextlib.chdir(tmp_path_factory.mktemp("run")):
        asyncio.run(make_logs())
        names: dict[str, Any] = {}
        for block in BLOCKS:
            if block not in DATASETS:
                exec(compile(block, str(PAGE), "exec"), names)
        yield names


def test_every_example_is_run() -> None:
    """The page has no example in another language, which would not be run, and one for HF datasets."""
    assert PAGE.read_text().count("```") == 2 * len(BLOCKS)
    assert len(DATASETS) == 1


def test_rollouts_come_back_as_objects(names: dict[str, Any]) -> None:
    """The worst rollout comes first, exceptions are there, and Choices have their logprobs."""
    assert [t.reward for t in names["rollouts"]] == [0.5, 1.0]
    assert names["trajectory"].messages()[-1]["content"] == "good 2"
    assert names["failures"] == ["the server is slow"]
    choice = names["trajectory"].messages_and_choices[-1]
    assert [entry.logprob for entry in choice.logprobs.content] == [-1.5, -1.5]


def test_one_metric_across_the_steps(names: dict[str, Any]) -> None:
    """Each train call has its row, at the step it led to."""
    assert names["loss"].rows() == [(step, 0.5, 1e-5) for step in (1, 2, 3)]


def test_val_against_train(names: dict[str, Any]) -> None:
    """A step that was evaluated in two parts has the mean over both."""
    rewards = names["rewards"].sort("step")
    assert rewards["step"].to_list() == [0, 1, 2]
    assert rewards["train/reward"].to_list() == [0.25, 0.5, 0.75]
    assert rewards["val/reward"].to_list() == [0.5, None, pytest.approx(1 / 3)]


def test_duckdb_tells_reward_rollouts_and_failures(names: dict[str, Any]) -> None:
    """Exceptions and empty groups are not counted as rollouts, nor a NaN in the mean."""
    assert names["reward_by_step"].fetchall() == [
        ("train", 0, 0.25, 3, 1),
        ("train", 1, 0.5, 2, 1),
        ("train", 2, 0.75, 2, 1),
        ("val", 0, 0.5, 1, 0),
        ("val", 2, pytest.approx(1 / 3), 3, 0),
    ]


def test_duckdb_tells_exceptions_by_type(names: dict[str, Any]) -> None:
    """The most frequent comes first, with its text."""
    rows = names["exceptions"].fetchall()
    assert [("TimeoutError" in name, times) for name, times, _ in rows] == [(True, 2), (False, 1)]
    assert rows[0][2] == "the server is slow"


def test_duckdb_reads_metrics_of_rollouts(names: dict[str, Any]) -> None:
    """A metric is a number, without parsing JSON."""
    assert names["turns"].fetchall() == [(0, 2.0), (1, 2.5), (2, 2.5)]


def test_polars_shows_the_worst_rollouts(names: dict[str, Any]) -> None:
    """With the last message of each, worst first."""
    worst: pl.DataFrame = names["worst"]
    assert worst.select("reward", "last_message").rows() == [(0.5, "bad 2"), (1.0, "good 2")]
    assert [json.loads(text) for text in worst["metadata"]] == [{"task": "name it"}] * 2


def test_polars_counts_tool_calls_by_name(names: dict[str, Any]) -> None:
    """Every call of every turn counts."""
    per_step = [("read", 1), ("search", 2)]
    expected = [(step, *counts) for step in range(3) for counts in per_step]
    assert names["tool_calls"].rows() == expected


def test_polars_tells_the_mean_logprob_by_step(names: dict[str, Any]) -> None:
    """Over all sampled tokens; turns without logprobs do not count."""
    assert names["logprobs"].rows() == [(0, -0.5), (1, -1.0), (2, -1.5)]


def test_pandas_tells_reward_by_step_and_split(names: dict[str, Any]) -> None:
    """One row a step, one column a split, with the number of scored rollouts."""
    table = names["table"]
    assert table["mean"]["train"].to_list() == [0.25, 0.5, 0.75]
    assert table["count"]["train"].to_list() == [2, 2, 2]
    assert table["mean"]["val"].dropna().to_list() == [0.5, pytest.approx(1 / 3)]
    assert table["count"]["val"].dropna().to_list() == [1, 3]


def test_hf_datasets_reads_the_files_without_a_network(
    names: dict[str, Any], tmp_path: Path
) -> None:
    """All rows load with their nested columns, and the good rollouts become conversations."""
    program = "\n".join([GUARD, BLOCKS[0], *DATASETS, REPORT])
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment | {"HF_DATASETS_DISABLE_PROGRESS_BARS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    conversations, num_rows = json.loads(done.stdout.splitlines()[-1])
    assert num_rows == 13  # seven rollouts, three exceptions, three empty groups
    assert [[m["role"] for m in messages] for messages in conversations] == [
        ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    ] * 2
    assert [messages[-1]["content"] for messages in conversations] == ["good 1", "good 2"]
    assert conversations[0][0]["content"] == "What is this?"
