"""The sink for Weights & Biases: one run per model directory, with the training step as its x axis."""

from __future__ import annotations

import contextlib
import hashlib
import json
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

_HOSTS = ("api.wandb.ai", "api.forge.coreweave.com")  # one service under two names
_ANSWER_TIMEOUT_S = 5.0
_RUN_ID_FILE = ".wandb-run-id"
_STEP_KEY = "training_step"
# wandb refuses these in projects and run ids, and more than 128 characters.
_ILLEGAL = re.compile(r"[/\\#?%:,;'\x00-\x1f\x7f\ud800-\udfff]")
_MAX_NAME_CHARACTERS = 128


class WandbSink:
    """Sends rows to wandb; the package is imported when the first row comes.

    It never asks for a key: without one it stays off, after one warning. Each row carries `training_step`, the
    x axis of every split, so rows of older steps (late evaluations, a resumed run) show up as well.

    A server that does not answer within five seconds is left alone. One that falls silent after the start holds
    up the end of a run by `finish_timeout_s`, and Python's exit by another ten seconds or so, which wandb's own
    exit handler takes. The environment variables WANDB_INIT_TIMEOUT and WANDB_FINISH_TIMEOUT (seconds) win over
    the arguments.

    Args:
        init_timeout_s: How long the start of a run may take, once the server has answered at all.
        finish_timeout_s: How long the end of a run may wait for uploads; what is left then stays in wandb's
            folder, for `wandb sync`.
    """

    def __init__(self, init_timeout_s: float = 20.0, finish_timeout_s: float = 10.0) -> None:
        self._timeouts_s = {"init_timeout": init_timeout_s, "finish_timeout": finish_timeout_s}
        self._context: SinkContext | None = None
        self._run: wandb.Run | None = None
        self._splits: set[str] = set()
        self._told: set[str] = set()

    @property
    def run(self) -> wandb.Run | None:
        """The run, or None while there is none."""
        return self._run

    def open(self, context: SinkContext) -> None:
        """Start or resume the run of a model directory; without the package or a key, stay off.

        Raises:
            ConnectionError: The server does not answer.
            Exception: Whatever wandb raises for a run that it cannot start.
        """
        self._context = context
        self._leave_run()
        mode = os.environ.get("WANDB_MODE")
        if mode == "disabled":
            return
        try:
            import wandb
        except ImportError:
            is_installed = False
        else:  # an offline run leaves a folder `wandb`, which Python takes for an empty package
            is_installed = wandb.__file__ is not None
        if not is_installed:
            self._tell('wandb is not installed, so nothing is sent; pip install "art-rl[wandb]"')
            return
        settings = wandb.setup().settings
        mode = mode or settings.mode
        if mode == "disabled":
            return
        if mode not in {"offline", "dryrun"}:
            if not _has_key(settings):
                self._tell(
                    "wandb has no API key, so nothing is sent; set WANDB_API_KEY, run `wandb login`, "
                    "or set WANDB_MODE=offline"
                )
                return
            _check_server(settings)
        self._run = self._start(context, mode)
        self._run.define_metric(_STEP_KEY)
        logger.info("wandb run %s, files in %s", self._run.id, self._run.dir)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Send one row; a run that somebody finished in between is opened again."""
        if self._run is None:
            return
        try:
            self._send(self._run, metrics, step)
        except Exception:
            # Finished, or wandb.teardown() was called: each wandb version has errors of its own for that.
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

    def _start(self, context: SinkContext, mode: str) -> wandb.Run:
        import wandb

        timeouts_s = {
            name: value
            for name, value in self._timeouts_s.items()
            if f"WANDB_{name.upper()}" not in os.environ
        }
        try:
            return wandb.init(
                project=self._clean(context.project),
                name=self._clean(context.name),
                entity=context.entity,
                config=_clean_config(context.config),
                id=_run_id(context.directory),
                resume="allow",
                mode=cast("Any", mode),
                reinit="create_new",  # another run of the user's in this process is left alone
                settings=wandb.Settings(
                    silent=True,
                    console="off",  # do not capture the program's output
                    **cast("Any", timeouts_s),
                ),
            )
        except BaseException:
            _free_run_id()
            raise

    def _leave_run(self) -> None:
        """Finish a run that is still there, whatever state it is in."""
        self._splits.clear()
        with contextlib.suppress(Exception):
            self.close()

    def _send(self, run: wandb.Run, metrics: Mapping[str, float], step: int) -> None:
        row = {_clean_key(key): value for key, value in metrics.items()}
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


def _clean_key(key: str) -> str:
    """Return a key that wandb takes: its protocol is UTF-8, without lone surrogates, and a star is a pattern."""
    return shown(key).replace("*", "\N{ASTERISK OPERATOR}")


def _clean_config(config: dict[str, Any] | None) -> dict[str, Any] | None:
    if config is None:
        return None
    return cast("dict[str, Any]", json.loads(shown(json.dumps(config, ensure_ascii=False))))


def _has_key(settings: wandb.Settings) -> bool:
    """Tell whether wandb would find a key, or another login, in the environment, its settings or netrc."""
    names = ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")
    if any(os.environ.get(name) for name in names) or settings.api_key:
        return True
    host = urlsplit(settings.base_url).netloc
    hosts = _HOSTS if host in _HOSTS else (host,)
    for candidate in filter(None, [os.environ.get("NETRC"), "~/.netrc", "~/_netrc"]):
        try:
            entries = netrc.netrc(Path(candidate).expanduser())
        except (OSError, netrc.NetrcParseError):
            continue  # wandb could not use it either
        if any(entries.authenticators(host) for host in hosts):
            return True
    return False


def _check_server(settings: wandb.Settings) -> None:
    """Raise ConnectionError unless something answers at the server's address.

    wandb.init would wait long for a dead network, and wandb's exit handler then waits for that start.
    """
    import ssl
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import ProxyHandler, build_opener, getproxies

    own = {"http": settings.http_proxy, "https": settings.https_proxy}
    proxies = getproxies() | {scheme: proxy for scheme, proxy in own.items() if proxy}
    opener = build_opener(ProxyHandler(proxies))
    try:
        with opener.open(settings.base_url, timeout=_ANSWER_TIMEOUT_S):
            return
    except HTTPError as error:
        error.close()
        if error.code not in {502, 503, 504}:  # what a proxy says for a server that is down
            return
        problem: object = error
    except (OSError, HTTPException) as error:
        if isinstance(getattr(error, "reason", None), ssl.SSLError):
            return  # it is there; wandb has certificate settings of its own
        problem = error
    raise ConnectionError(f"the wandb server at {settings.base_url} does not answer: {problem}")


def _free_run_id() -> None:
    """After a start that failed, wandb's service holds the run's id "in use" until it is ended.

    It is left alone while other runs need it.
    """
    import wandb

    with contextlib.suppress(Exception, SystemExit):
        if wandb.setup().most_recent_active_run is None:
            wandb.teardown()
