from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from hpcrl.run.directory import Attempt, RunDirectory
from hpcrl.run.errors import Stopped
from hpcrl.run.stop import wait_for
from hpcrl.supervise.drain import DrainFlag, ask_to_drain, drain_of


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return RunDirectory.create(tmp_path / "run", name="t", recipe_json="{}").new_attempt()


def test_a_request_is_heard_by_every_wait(attempt: Attempt):
    flag = DrainFlag(attempt, "ignitor.0", 10.0)
    assert not flag.is_set()
    ask_to_drain(attempt, "node n1 is down", 5.0)
    with pytest.raises(Stopped):
        wait_for("ever", lambda: None, seconds=5, stop=flag)


def test_a_later_request_changes_the_deadline_alone(attempt: Attempt):
    ask_to_drain(attempt, "first", 100.0)
    first = drain_of(attempt)
    ask_to_drain(attempt, "second", 5.0)
    now = drain_of(attempt)
    assert first is not None
    assert now is not None
    assert (now.reason, now.t) == ("first", first.t)
    assert now.until < first.until - 50
    ask_to_drain(attempt, "third", 500.0, replace=False)
    assert drain_of(attempt) == now
    assert [path.name for path in attempt.path.glob("*drain*")] == ["drain"]


def test_a_signal_to_one_ignitor_becomes_a_request_to_all(attempt: Attempt):
    flag, other = DrainFlag(attempt, "ignitor.3", 10.0), DrainFlag(attempt, "ignitor.0", 10.0)
    before = signal.getsignal(signal.SIGUSR1)
    flag.hear([signal.SIGUSR1])
    try:
        os.kill(os.getpid(), signal.SIGUSR1)
        wait_for("the signal", lambda: flag.is_set() or None, seconds=5)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert other.is_set()
    request = drain_of(attempt)
    assert request is not None
    assert "SIGUSR1 to ignitor.3" in request.reason
    assert 5 < request.until - time.time() <= 10
    assert json.loads((attempt.path / "drain").read_text())["reason"] == request.reason
