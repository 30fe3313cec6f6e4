"""The sink for Weights & Biases: one run per model directory, with the training step as its x axis."""

from __future__ import annotations

import hashlib
import logging
import netrc
import os
import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from art.books.atomic import write_bytes
from art.books.plain_json import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    import wandb

    from art.books.sinks import SinkContext

logger = logging.getLogger(__name__)

_DEFAULT_URL = "https://api.wandb.ai"
_RUN_ID_FILE = ".wandb-run-id"
_STEP_KEY = "training_step"
# wandb refuses these in projects and run ids, and more than 128 characters.
_ILLEGAL = re.compile(r"[/\\#?%:,;'\x00-\x1f\x7f\ud800-\udfff]")
_MAX_NAME_CHARACTERS = 128


class WandbSink:
    """Sends rows to wandb; the package is imported when the first row comes.

    It never asks for a key: without one it stays off, after one warning. Each row carries `training_step`, the
    x axis of every split, so rows of older steps (late evaluations, a resumed run) show up as well.

    Args:
        init_timeout_s: How long the start of a run may take.
    """

    def __init__(self, init_timeout_s: float = 30.0) -> None:
        self._init_timeout_s = init_timeout_s
        self._context: SinkContext | None = None
        self._run: wandb.Run | None = None
        self._splits: set[str] = set()
        self._told: set[str] = set()

    @property
    def run(self) -> wandb.Run | None:
        """The run, or None while there is none."""
        return self._run

    def open(self, context: SinkContext) -> None:
        """Start or resume the run of a model directory; without the package or a key, stay off."""
        self._context = context
        self._run = None
        self._splits.clear()
        mode = os.environ.get("WANDB_MODE")
        if mode == "disabled":
            return
        try:
            import wandb
        except ImportError:
            self._tell('wandb is not installed, so nothing is sent; pip install "art-rl[wandb]"')
            return
        if mode not in {"offline", "dryrun"} and not (_has_saved_key() or _has_session()):
            self._tell(
                "wandb has no API key, so nothing is sent; set WANDB_API_KEY, run `wandb login`, "
                "or set WANDB_MODE=offline"
            )
            return
        self._run = wandb.init(
            project=self._clean(context.project),
            name=self._clean(context.name),
            entity=context.entity,
            config=context.config,
            id=_run_id(context.directory),
            resume="allow",
            mode=cast("Any", mode),
            reinit="create_new",  # another run of the user's in this process is left alone
            settings=wandb.Settings(
                init_timeout=self._init_timeout_s,
                silent=True,
                console="off",  # do not capture the program's output
            ),
        )
        self._run.define_metric(_STEP_KEY)
        logger.info("wandb run %s, files in %s", self._run.id, self._run.dir)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Send one row; a run that somebody finished in between is opened again."""
        if self._run is None:
            return
        import wandb

        try:
            self._send(self._run, metrics, step)
        except wandb.errors.UsageError:  # what wandb raises for a finished run
            if self._context is None:
                raise
            self.open(self._context)
            if self._run is not None:
                self._send(self._run, metrics, step)

    def close(self) -> None:
        """Finish the run; a later row resumes it."""
        run, self._run = self._run, None
        if run is not None:
            run.finish()

    def _send(self, run: wandb.Run, metrics: Mapping[str, float], step: int) -> None:
        # wandb's protocol is UTF-8, which has no lone surrogates.
        row = {shown(key): value for key, value in metrics.items()}
        for split in sorted({key.partition("/")[0] for key in row if "/" in key} - self._splits):
            run.define_metric(f"{split}/*", step_metric=_STEP_KEY)
            self._splits.add(split)
        # Never step=: wandb silently drops rows whose step goes back.
        run.log({_STEP_KEY: step, **row})

    def _clean(self, name: str) -> str:
        cleaned = clean_name(name)
        if cleaned != name:
            self._tell(f"wandb cannot take the name {name!r}; it is called {cleaned!r} there")
        return cleaned

    def _tell(self, message: str) -> None:
        if message not in self._told:
            self._told.add(message)
            logger.warning("%s", message)


def clean_name(name: str) -> str:
    """Return a name that wandb accepts; two different names never become the same one."""
    if not _ILLEGAL.search(name) and len(name) <= _MAX_NAME_CHARACTERS:
        return name
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{_ILLEGAL.sub('-', name)[: _MAX_NAME_CHARACTERS - 9]}-{digest}"


def _run_id(directory: Path) -> str:
    """Return the run's id, made up once per model directory.

    A name would not do: wandb refuses many characters in an id, and never lets a deleted one be used again.
    """
    path = directory / _RUN_ID_FILE
    if path.exists():
        saved = path.read_text(errors="replace").strip()
        if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", saved):
            return saved
    run_id = secrets.token_hex(6)
    write_bytes(path, f"{run_id}\n".encode())
    return run_id


def _has_saved_key() -> bool:
    """Tell whether wandb would find a key in the environment or in netrc."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL") or _DEFAULT_URL).hostname or ""
    for candidate in filter(None, [os.environ.get("NETRC"), "~/.netrc", "~/_netrc"]):
        try:
            if netrc.netrc(Path(candidate).expanduser()).authenticators(host):
                return True
        except (OSError, netrc.NetrcParseError):
            continue  # wandb could not use it either
    return False


def _has_session() -> bool:
    """Tell whether wandb needs no key from us: logged in otherwise, or switched off in its settings file.

    Asked last, because it starts wandb's service process.
    """
    import wandb

    settings = wandb.setup().settings
    return bool(settings.api_key) or settings.mode in {"offline", "disabled", "dryrun"}
