from __future__ import annotations

import json
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from art.books.sink_dispatcher import SinkDispatcher
from art.books.sinks import SinkContext
from art.books.wandb_sink import WandbSink
from tests.art.books.wandb_child import KEY, run_script, warnings_in
from tests.art.books.wandb_server import WandbServer, running_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process

TIMEOUT_S = 30.0


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WandbServer]:
    """A server, and a wandb in this process that knows nothing but its address and a key."""
    import wandb

    with running_server() as server:
        for name in ["WANDB_DIR", "WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR", "HOME"]:
            monkeypatch.setenv(name, str(tmp_path))
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        monkeypatch.chdir(tmp_path)
        wandb.teardown()
        yield server
        server.state = "up"
        wandb.teardown()


@pytest.fixture
def context(tmp_path: Path) -> SinkContext:
    return SinkContext("p", "m", tmp_path / "model")


def steps_at(server: WandbServer) -> list[int]:
    return [row["training_step"] for row in server.rows]


def test_c093_rows_wait_for_the_network_and_arrive(
    server: WandbServer, context: SinkContext, caplog: pytest.LogCaptureFixture
) -> None:
    """While the server is down rows wait, after one warning; when it is back all of them arrive."""
    server.state = "down"
    dispatcher = SinkDispatcher([WandbSink()], context, retry_after_s=0.0)
    for step in range(3):
        dispatcher.log({"val/x": 1.0}, step)
    assert dispatcher.flush(TIMEOUT_S)
    assert server.rows == []
    server.state = "up"
    dispatcher.log({"val/x": 1.0}, 3)
    assert dispatcher.close(TIMEOUT_S)
    assert steps_at(server) == [0, 1, 2, 3]
    (warning,) = [r for r in caplog.records if r.levelname == "WARNING"]
    assert "does not answer" in warning.getMessage()


def test_c093_a_start_that_timed_out_can_be_tried_again(
    server: WandbServer, context: SinkContext
) -> None:
    """A server that goes silent during the start costs the written time; the same run starts later."""
    server.state = "mute"
    sink = WandbSink(init_timeout_s=1.0)
    with pytest.raises(Exception, match="deadline exceeded"):
        sink.open(context)
    server.state = "up"
    sink.open(context)
    sink.log({"val/x": 1.0}, 7)
    sink.close()
    assert steps_at(server) == [7]


def test_c093_a_network_that_dies_in_between_does_not_hold_up_the_end(
    server: WandbServer, context: SinkContext, tmp_path: Path
) -> None:
    """The end of a run waits a bounded time for a silent server, and wandb's own file has every row."""
    sink = WandbSink(finish_timeout_s=1.0)
    sink.open(context)
    assert sink.run is not None
    run_id = sink.run.id
    sink.log({"val/x": 1.0}, 1)
    server.state = "mute"
    sink.log({"val/marker": 2.0}, 2)
    sink.close()
    (run_file,) = tmp_path.glob(f"wandb/run-*/run-{run_id}.wandb")
    deadline_s = time.monotonic() + TIMEOUT_S
    while b"val/marker" not in run_file.read_bytes():  # wandb's service writes in the background
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_c118_the_key_reaches_the_server_and_nothing_else(tmp_path: Path) -> None:
    """With all logging at debug, the key stands in no output, no log and no file."""
    script = """
async def main():
    m = model(report_metrics=["wandb"])
    await log(m, 1, step=1)
    print(repr(m), m.report_metrics, m._get_wandb_run().config)
    await m.close()
asyncio.run(main())
"""
    with running_server() as server:
        result = run_script(
            script,
            tmp_path,
            WANDB_BASE_URL=server.url,
            WANDB_API_KEY=KEY,
            LOG_LEVEL="DEBUG",
        )
        assert server.authorizations
    assert (result.returncode, steps_at(server)) == (0, [1])
    assert "DEBUG" in result.stderr
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) > 5
    texts = [*written, result.stdout.encode(), result.stderr.encode()]
    assert [text for text in texts if KEY.encode() in text] == []


@pytest.mark.parametrize("key", ["short_SECRET", "SECRET with spaces, and all in all long enough"])
def test_c118_a_key_that_is_refused_is_not_shown(tmp_path: Path, key: str) -> None:
    """A malformed key gives one warning that does not repeat it, and the training goes on."""
    script = """
async def main():
    m = model()
    await log(m, 1)
    await log(m, 2)
    assert m._get_wandb_run() is None
    await m.close()
asyncio.run(main())
"""
    result = run_script(script, tmp_path, WANDB_API_KEY=key, WANDB_BASE_URL="http://127.0.0.1:9")
    assert result.returncode == 0
    (warning,) = warnings_in(result)
    assert "WandbSink" in warning
    assert "SECRET" not in result.stderr + result.stdout
    assert history_values(tmp_path) == [1.0, 2.0]


def history_values(home: Path) -> list[float]:
    (path,) = home.glob(".art/**/history.jsonl")
    return [json.loads(line)["val/x"] for line in path.read_text().splitlines()]


SHORT_TRAINING = """
async def main():
    m = model()
    for value in range(5):
        await log(m, value)
    print("trained", flush=True)
    if WITH_CLOSE:
        await m.close()
        await m.close()
asyncio.run(main())
"""


@pytest.mark.parametrize("closes", [True, False])
def test_c093_a_black_hole_holds_up_neither_training_nor_exit(tmp_path: Path, closes: bool) -> None:
    """Where the server's address takes connections and never answers, a training ends well, soon and complete."""
    with socket.create_server(("127.0.0.1", 0)) as hole:
        threading.Thread(target=_swallow, args=(hole,), daemon=True).start()
        result = run_script(
            SHORT_TRAINING.replace("WITH_CLOSE", str(closes)),
            tmp_path,
            timeout_s=45.0,
            WANDB_API_KEY=KEY,
            WANDB_BASE_URL=f"http://127.0.0.1:{hole.getsockname()[1]}",
        )
    assert (result.returncode, result.stdout) == (0, "trained\n")
    (warning,) = [line for line in result.stderr.splitlines() if line.strip()]
    assert "does not answer" in warning
    assert history_values(tmp_path) == [0.0, 1.0, 2.0, 3.0, 4.0]


def _swallow(hole: socket.socket) -> None:
    held = []
    while True:
        try:
            held.append(hole.accept())
        except OSError:
            return


def test_c093_a_refused_connection_is_told_once(tmp_path: Path) -> None:
    """Where nobody listens the training ends well after one warning."""
    result = run_script(
        SHORT_TRAINING.replace("WITH_CLOSE", "True"),
        tmp_path,
        WANDB_API_KEY=KEY,
        WANDB_BASE_URL="http://127.0.0.1:9",
    )
    assert (result.returncode, result.stdout) == (0, "trained\n")
    (warning,) = warnings_in(result)
    assert "refused" in warning
    assert history_values(tmp_path) == [0.0, 1.0, 2.0, 3.0, 4.0]
