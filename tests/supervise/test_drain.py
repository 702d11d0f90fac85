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
from hpcrl.supervise.drain import DrainFlag, DrainTimer, ask_to_drain, drain_of


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
    assert (first.seconds, now.seconds) == (100.0, 5.0)
    ask_to_drain(attempt, "third", 500.0, replace=False)
    assert drain_of(attempt) == now
    assert [path.name for path in attempt.path.glob("*drain*")] == ["drain"]


@pytest.mark.parametrize("skew", [-300.0, 0.0, 300.0])
def test_a_request_counts_from_when_it_is_seen_whatever_the_clock_of_who_made_it(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch, skew: float
):
    timer = DrainTimer(attempt)
    assert not timer.is_over()
    there = time.time() + skew
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(time, "time", lambda: there)
        ask_to_drain(attempt, "preempted", 1.0)
    began = time.monotonic()
    assert not timer.is_over()
    wait_for("its end", lambda: timer.is_over() or None, seconds=5)
    assert 0.9 < time.monotonic() - began < 4


def test_a_further_request_counts_anew(attempt: Attempt):
    timer = DrainTimer(attempt)
    ask_to_drain(attempt, "node n1 is down", 1000.0)
    assert not timer.is_over()
    ask_to_drain(attempt, "", 0.2)
    began = time.monotonic()
    assert not timer.is_over()
    wait_for("its end", lambda: timer.is_over() or None, seconds=5)
    assert time.monotonic() - began > 0.15


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
    assert request.seconds == 10
    assert json.loads((attempt.path / "drain").read_text())["reason"] == request.reason
