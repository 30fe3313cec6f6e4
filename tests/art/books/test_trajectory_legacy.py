from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import art
from art.books.trajectory_legacy import (
    document_of,
    groups_of,
    parse_groups,
    read_legacy_file,
    unknown_keys,
)
from art.errors import LogError
from art.messages import is_choice
from tests.art.upstream_files import DIRECTORY

BARE = {"messages_and_choices": [], "reward": 1.0}


def test_both_forms_of_text_are_told_apart() -> None:
    """JSONL begins with a brace; an empty text holds no groups; YAML may be empty, too."""
    line = json.dumps({"trajectories": [BARE]})
    assert len(parse_groups(f"\n{line}\r\n\n{line}")) == 2
    assert parse_groups(" \n") == []
    assert parse_groups("[]\n") == []
    assert len(parse_groups((DIRECTORY / "2025-06.yaml").read_text())) == 2


def test_a_line_may_hold_any_separator_of_unicode(tmp_path: Path) -> None:
    """Only a line feed ends a line; a byte order mark is no part of it."""
    path = tmp_path / "0001.jsonl"
    document = {"trajectories": [{**BARE, "logs": ["a\u2028b\x85c"]}]}
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(document, ensure_ascii=False).encode())

    [group] = read_legacy_file(path).groups

    assert group.trajectories[0].logs == ["a\u2028b\x85c"]


def test_nulls_and_missing_fields_are_read() -> None:
    """A null number was NaN, and any other null field is empty."""
    given: dict[str, Any] = {
        "trajectories": [{"reward": None, "metrics": {"a": None}, "logs": None, "tools": None}],
        "metadata": None,
        "metrics": {"judge": None},
    }

    [group] = groups_of([document_of(given)])

    [trajectory] = group.trajectories
    assert math.isnan(trajectory.reward)
    assert math.isnan(trajectory.metrics["a"])
    assert math.isnan(group.metrics["judge"])
    assert (trajectory.logs, trajectory.tools, group.metadata) == ([], None, {})


def test_keys_that_groups_have_no_room_for_are_named() -> None:
    """A migration keeps them, so it must know of them."""
    trajectory = {**BARE, "exchanges": {}, "start_time": "2026-01-01"}
    document = document_of({"trajectories": [trajectory], "version": 2, "logs": []})
    assert unknown_keys([document]) == ["exchanges", "start_time", "version"]
    assert len(groups_of([document])[0]) == 1


def test_c007_choices_come_back_as_choices() -> None:
    """A reloaded group can be trained on like a live one: model turns, logprobs and further histories."""
    [group, _] = read_legacy_file(DIRECTORY / "0.5.23.jsonl").groups
    trajectory = group.trajectories[0]
    turns = [
        trajectory.messages_and_choices[4],
        trajectory.additional_histories[0].messages_and_choices[1],
    ]
    for turn in turns:
        assert is_choice(turn)
        assert turn.logprobs is not None
        assert turn.logprobs.content is not None
        assert turn.logprobs.content[0].logprob == -0.25


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("0001.jsonl", '{"trajectories": []}\n{"trajectories": [', "JSONL.* line 2"),
        ("0001.jsonl", '{"a": 1}', "line 1: it is no object with a list of trajectories"),
        ("0001.jsonl", '{"trajectories": [1]}', "line 1: a trajectory is a int"),
        ("0001.jsonl", '{"trajectories": [{"logs": []}]}', "line 1: a trajectory has no reward"),
        (
            "0001.jsonl",
            '{"trajectories": [{"reward": 0, "messages_and_choices": ["hi"]}]}',
            "group 0",
        ),
        ("0001.jsonl", '{"trajectories": [{"reward": "high"}]}', "group 0"),
        ("0001.jsonl", "[" * 100_000, "JSONL"),
        ("0001.yaml", "a: 1", "YAML.* it holds a dict"),
        ("0001.yaml", "- trajectories: [!!python/name:os.getcwd '']", "python/name"),
        (
            "0001.yml",
            "- trajectories: [{reward: 0, metadata: {b: !!binary aGk=}}]",
            "group 0.* bytes",
        ),
        (
            "0001.yaml",
            "- trajectories: [{reward: 0, metadata: &a {b: *a}}]",
            "group 0.* contains itself",
        ),
    ],
)
def test_what_is_torn_or_of_another_kind_is_an_error_with_its_place(
    name: str, text: str, message: str, tmp_path: Path
) -> None:
    """The error names the file and the line or group."""
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(LogError, match=f"(?s){name}.*{message}"):
        read_legacy_file(path)


def test_text_that_is_not_utf8_is_an_error(tmp_path: Path) -> None:
    """As of a file that a dying disk left."""
    path = tmp_path / "0001.jsonl"
    path.write_bytes(b'{"trajectories": [\xff')
    with pytest.raises(LogError, match=r"0001\.jsonl"):
        read_legacy_file(path)


def test_yaml_without_pyyaml_is_an_error_that_names_the_extra() -> None:
    """Only who has YAML files needs pyyaml; JSONL is read without it."""
    code = (
        "import sys; sys.modules['yaml'] = None\n"
        "import art\n"
        f"print(len(art.load_trajectories({str(DIRECTORY / '0.5.18.jsonl')!r})))\n"
        f"try: art.load_trajectories({str(DIRECTORY / '2025-06.yaml')!r})\n"
        "except art.errors.MissingDependencyError as error: print(error)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.startswith("2\n")
    assert 'pip install "art-rl[migrate]"' in run.stdout


def test_json_is_read_without_arrow() -> None:
    """Reading text loads no engine for columns."""
    code = (
        "import sys, art\n"
        f"art.load_trajectories({str(DIRECTORY / '0.5.18.jsonl')!r})\n"
        "print({'pyarrow', 'polars', 'yaml'} & set(sys.modules))\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "set()\n"


def test_same_groups_sees_what_the_reader_could_lose() -> None:
    """The comparison that the tests of reading rest on tells a lost field."""
    [group, _] = read_legacy_file(DIRECTORY / "0.5.18.jsonl").groups
    changed = group.model_copy(deep=True)
    changed.trajectories[0].additional_histories = []
    assert not art.same_groups([group], [changed])
