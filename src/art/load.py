"""Reading logged rollouts back: `art.load_trajectories`."""

from __future__ import annotations

import errno
import itertools
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art.errors import ConfigurationError, LogError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from art.books.trajectory_listing import TrajectoryFile
    from art.trajectories import TrajectoryGroup

logger = logging.getLogger(__name__)


def load_trajectories(
    path: str | Path,
    *,
    split: str | Iterable[str] | None = None,
    step: int | Iterable[int] | None = None,
    skip_unreadable: bool = False,
) -> list[TrajectoryGroup]:
    """Read logged groups back, of this project's or any of upstream's formats.

    ```python
    groups = art.load_trajectories(art.model_dir(model), split="val", step=range(10, 20))
    ```

    Groups come in order of step as a number, then split, then as they were logged. Where a step has files of
    several formats, what an older file and the first log of a newer one tell alike is read once, from the
    older file, which never holds less.

    Args:
        path: A file, or a model's directory (see `art.model_dir`), its `trajectories` directory, or the
            directory of one split. Formats go by suffix: `.parquet` (ours and upstream's both), `.jsonl`,
            and `.yaml`, which needs the extra `migrate`.
        split: Only this split, or these.
        step: Only this step, or these; a `range` is quick. Split and step are told by the path
            `{split}/{step}.{suffix}`; a file that is named otherwise has no step.
        skip_unreadable: Leave out files that cannot be read, with one warning that names them.

    Returns:
        The groups; `[]` for a model that has logged none. What upstream's first parquet format dropped
        (exceptions, logprobs, finish reasons, further histories, policy versions) is not there.

    Raises:
        FileNotFoundError: There is no such file or directory.
        ConfigurationError: The file has another suffix, or the directory is none of a model's.
        MissingDependencyError: A file is YAML and pyyaml is not installed.
        LogError: A file cannot be read; the message names it.
    """
    path = Path(path)
    in_splits, in_steps = _filter(split), _filter(step)
    if not path.is_dir():
        return _load_file(path, in_splits, in_steps)
    all_files = _files_of(path)
    files = [file for file in all_files if in_splits(file.split) and in_steps(file.step)]
    splits = {file.split for file in all_files}
    if splits and not any(map(in_splits, splits)):
        logger.warning("%s: no split %r; it has %s", path, split, ", ".join(sorted(splits)))
    groups: list[TrajectoryGroup] = []
    problems: list[LogError] = []
    for _, same_step in itertools.groupby(files, lambda file: (file.step, file.split)):
        groups += _groups_of_step(same_step, problems if skip_unreadable else None)
    if problems:
        reasons = "; ".join(map(str, problems))
        logger.warning("%s: left out %d unreadable file(s): %s", path, len(problems), reasons)
    return groups


def _filter(wanted: Any) -> Callable[[object], bool]:
    if wanted is None:
        return lambda _: True
    if isinstance(wanted, str) or not isinstance(wanted, Iterable):  # numpy's integers, too
        wanted = [wanted]
    # An iterator can be asked but once; a range need not be walked through.
    values: Collection[object] = wanted if isinstance(wanted, range) else frozenset(wanted)
    return lambda value: value in values


def _load_file(
    path: Path, in_splits: Callable[[object], bool], in_steps: Callable[[object], bool]
) -> list[TrajectoryGroup]:
    from art.books.trajectory_listing import SUFFIXES, locate

    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    if path.suffix not in SUFFIXES:
        raise ConfigurationError(
            f"{path} is no trajectory file by its name; its suffix must be one of {', '.join(SUFFIXES)}"
        )
    place = locate(path)
    split = path.absolute().parent.name if place is None else place.split
    step = None if place is None else place.step
    if not (in_splits(split) and in_steps(step)):
        return []
    return list(itertools.chain.from_iterable(_read_logs_of(path)))


def _files_of(directory: Path) -> list[TrajectoryFile]:
    from art.books.paths import MODEL_FILE, TRAJECTORIES
    from art.books.trajectory_listing import files_of_model

    files = files_of_model(directory)
    whole = directory.absolute()
    is_model = any((whole / name).exists() for name in (TRAJECTORIES, MODEL_FILE))
    if not files and not is_model and TRAJECTORIES not in {whole.name, whole.parent.name}:
        raise ConfigurationError(
            f"{directory} holds no trajectory files; pass a model's directory "
            "({base_path}/{project}/models/{name}), its trajectories directory, or that of one split"
        )
    return files


def _groups_of_step(
    files: Iterable[TrajectoryFile], problems: list[LogError] | None
) -> list[TrajectoryGroup]:
    """Read the files of one split and step, oldest format first; `problems`, where given, takes errors."""
    groups: list[TrajectoryGroup] = []
    for file in files:
        try:
            logs = _read_logs_of(_present(file.path))
        except LogError as error:
            if problems is None:
                raise
            problems.append(error)
            continue
        # A migration that kept its source, or was killed before it could delete it.
        is_copy = groups and logs and _outline(logs[0]) == _outline(groups)
        groups += itertools.chain.from_iterable(logs[1:] if is_copy else logs)
    return groups


def _present(path: Path) -> Path:
    """Return a file that was listed, or the one that a migration has put in its place since."""
    migrated = path.with_suffix(".parquet")
    return migrated if not path.exists() and migrated.exists() else path


def _read_logs_of(path: Path) -> list[list[TrajectoryGroup]]:
    """Read the groups of one file of any format, one list for each call of `log`.

    Raises:
        FileNotFoundError: There is no such file.
        MissingDependencyError: It is YAML and pyyaml is not installed.
        LogError: It cannot be read.
    """
    if path.suffix == ".parquet":
        from art.books.trajectory_file import read_logs

        return list(read_logs(path).values())
    from art.books.trajectory_legacy import read_legacy_file

    return [read_legacy_file(path).groups]


def _outline(groups: Iterable[TrajectoryGroup]) -> list[object]:
    """Return what every format keeps of the groups that have trajectories."""
    return [
        [
            (
                repr(trajectory.reward),
                repr(sorted(trajectory.metrics.items())),  # as text, in which NaN equals NaN
                repr(sorted(trajectory.metadata.items())),
                [(m.get("role"), m.get("content")) for m in trajectory.messages()],
            )
            for trajectory in group
        ]
        for group in groups
        if len(group)
    ]
