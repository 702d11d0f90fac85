import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcrl.run.directory import RunDirectory
from hpcrl.run.records import DoneRecord, write_done
from hpcrl.run.stop import StopFlag, wait_for
from hpcrl.tracking import feed as feed_module
from hpcrl.tracking.feed import Follower, catch_up, wait_for_roles
from hpcrl.tracking.mlflow_feed import MlflowFeed, quiet_mlflow
from hpcrl.tracking.mlflow_store import default_uri

quiet_mlflow()


class FakeFeed:
    """A fake feed that fails as often as it is told to."""

    shown_uri = "http://tracker"

    def __init__(self, failures: int) -> None:
        self.failures, self.synced, self.finished = failures, 0, 0

    def sync(self, *, last: bool = False) -> int:
        if self.failures:
            self.failures -= 1
            raise ConnectionRefusedError("nobody\nlistens")
        self.synced += 1
        return 1

    def finish(self) -> None:
        self.finished += 1


def test_an_outage_is_said_once_and_its_end_once(run: RunDirectory, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    follower = Follower(FakeFeed(3), run)
    assert [follower.once() for _ in range(5)] == [False, False, False, True, True]
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2
    assert "http://tracker cannot be fed (ConnectionRefusedError: nobody listens)" in messages[0]
    assert str(run.path) in messages[0]
    assert "caught up" in messages[1]


def test_mlflow_is_not_started_before_a_role_has_said_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "POLL_S", 0.01)
    run = RunDirectory.create(tmp_path / "run", name="t", recipe_json="{}")
    journal, stop = run.new_attempt().journal, StopFlag()
    (journal / "supervisor.jsonl").write_text("{}\n")
    (journal / "trainer.0.jsonl").touch()
    waits = threading.Thread(target=wait_for_roles, args=(run, stop))
    waits.start()
    waits.join(0.1)
    assert waits.is_alive()
    (journal / "trainer.0.jsonl").write_text("{}\n")
    waits.join(10)
    assert not waits.is_alive()
    (journal / "trainer.0.jsonl").unlink()
    stop.set()
    wait_for_roles(run, stop)


def test_a_tracker_that_is_down_is_asked_less_and_less(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    stop = StopFlag()

    def sleep(seconds: float) -> bool:
        pauses.append(seconds)
        if len(pauses) == 10:
            stop.set()
        return stop.is_set()

    monkeypatch.setattr(stop, "sleep", sleep)
    Follower(FakeFeed(8), run).follow(stop)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 1, 1]


def test_catching_up_ends_at_its_deadline(run: RunDirectory) -> None:
    down, slow = FakeFeed(1_000_000), FakeFeed(1)
    started = time.monotonic()
    assert not catch_up(Follower(down, run), 0.2)
    assert catch_up(Follower(slow, run), 5.0)
    assert time.monotonic() - started < 4
    assert (slow.finished, down.finished) == (1, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "uri", ["sqlite:////nonexistent/folder/x.db", "bogus://x", "http://127.0.0.1:{port}", "sqlite:////dev/full"]
)
def test_a_real_tracker_that_cannot_be_reached_never_raises(
    trained: RunDirectory, caplog: pytest.LogCaptureFixture, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.socket() as bound:
        # Bound and not listening: a connection is refused, and nobody else can take the port.
        bound.bind(("127.0.0.1", 0))
        uri = uri.format(port=bound.getsockname()[1])
        if os.geteuid() == 0 and uri.startswith("sqlite:////nonexistent"):
            blocker = trained.path / "file"
            blocker.write_text("")
            uri = f"sqlite:///{blocker}/x.db"
        follower = Follower(MlflowFeed(trained, uri), trained)
        assert not follower.once(last=True)
        assert not follower.once(last=True)
    assert len([record for record in caplog.records if record.name == feed_module.__name__]) == 1


@pytest.mark.slow
def test_a_tracker_that_comes_back_gets_everything(trained: RunDirectory) -> None:
    from mlflow import MlflowClient

    blocker = trained.path / "elsewhere"
    blocker.write_text("")
    uri = f"sqlite:///{blocker}/mlflow.db"
    follower = Follower(MlflowFeed(trained, uri), trained)
    assert not follower.once()
    blocker.unlink()
    assert follower.once()
    [held] = MlflowClient(tracking_uri=uri).search_runs(["1"])
    assert held.data.metrics["train/version"] == 6


@pytest.mark.slow
def test_the_process_follows_and_catches_up_when_asked_to_end(run: RunDirectory, record_step: Callable[..., None]) -> None:
    from mlflow import MlflowClient

    attempt = run.new_attempt()
    record_step(attempt, 1)
    log = run.path / "feed.log"
    with open(log, "wb") as output:
        process = subprocess.Popen([sys.executable, "-m", "hpcrl.tracking.feed", str(run.path)], stdout=output, stderr=output)
    try:
        wait_for("the feed to log", lambda: _lines(run) or None, seconds=120)
        record_step(attempt, 2)
        for name in ("trainer.0", "rollout.0", "reward.0", "reward.1", "inference.0"):
            write_done(attempt, DoneRecord(process=name, status="done"))
        (run.path / "report.html").write_text("<p>")
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()
    assert log.read_text() == ""
    [held] = MlflowClient(tracking_uri=default_uri(run)).search_runs(["1"])
    assert held.data.metrics["train/version"] == 2
    assert held.data.metrics["outcomes/right"] > 0
    assert held.info.status == "FINISHED"


@pytest.mark.slow
def test_the_process_ends_although_the_server_hangs(trained: RunDirectory) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        accepted, held = threading.Event(), []

        def accept() -> None:
            held.append(server.accept())
            accepted.set()

        threading.Thread(target=accept, daemon=True).start()
        uri = f"http://127.0.0.1:{server.getsockname()[1]}"
        process = subprocess.Popen(
            [sys.executable, "-m", "hpcrl.tracking.feed", str(trained.path), "--tracking-uri", uri],
            env={**os.environ, "MLFLOW_HTTP_REQUEST_TIMEOUT": "60"},
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert accepted.wait(60)
            asked = time.monotonic()
            process.send_signal(signal.SIGTERM)
            _, error = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 1
    assert time.monotonic() - asked < 20
    assert "--once" in error


@pytest.mark.slow
def test_the_process_ends_with_its_parent(
    trained: RunDirectory, empty_database: Path, record_step: Callable[..., None]
) -> None:
    (trained.path / "mlflow.db").write_bytes(empty_database.read_bytes())
    code = """
import os, subprocess, sys
feed = [sys.executable, "-m", "hpcrl.tracking.feed", sys.argv[1], "--parent", str(os.getpid())]
print(subprocess.Popen(feed, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL).pid, flush=True)
sys.stdin.readline()
"""
    command = [sys.executable, "-c", code, str(trained.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        # What MLflow takes to start is no part of the time that it has to end.
        before = wait_for("the feed to be at work", lambda: _lines(trained) or None, seconds=120)
        for step in range(7, 10):
            record_step(trained.latest(), step)
        parent.communicate("end\n")
    wait_for("the feed to end", lambda: _gone(pid) or None, seconds=120)
    assert _lines(trained) > before, "it caught up before it ended"


def test_a_folder_that_is_no_run_is_an_error(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "hpcrl.tracking.feed", str(tmp_path)], stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert "not the directory of a run" in done.stderr
    assert "Traceback" not in done.stderr


def _lines(run: RunDirectory) -> int:
    """Of the trainer that are in MLflow."""
    path = run.path / "mlflow.json"
    cursors = json.loads(path.read_text()).values() if path.exists() else ()
    return sum(lines for cursor in cursors for writer, lines in cursor["lines"].items() if writer.endswith("/trainer.0"))


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True
