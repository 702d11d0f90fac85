"""Processes of every kind are killed, in random order, and stopped for long while rows flow: nothing is lost."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest

from hpcrl.testing.faults import victims
from hpcrl.testing.stream_run import StreamRun

pytestmark = pytest.mark.slow
KILLED = ("queue.0", "queue.1", "queue.2", "make.1", "score.1", "train_moved.0", "train_local.0")
STOPPED_S = 10.0
# A storage unit, a producer, a grader and a trainer; others of their kind go on meanwhile.
STOPPED = ("queue.1", "make.0", "score.0", "train_local.0")


def test_nothing_is_lost_whatever_is_killed_or_stopped(tmp_path: Path):
    draw = random.Random(5)
    # Cores that are never idle would make the start of each process last.
    with StreamRun(tmp_path / "run", pause_s=0.03) as run:
        for name in victims(KILLED, len(KILLED), draw):
            time.sleep(draw.uniform(0, 0.3))
            run.kill(name)
        # They begin and end apart, so that each meets the others both at work and stopped.
        for name in STOPPED:
            run.signal(name, signal.SIGSTOP)
            time.sleep(0.5)
        time.sleep(STOPPED_S - 0.5 * len(STOPPED))
        for name in STOPPED:
            run.signal(name, signal.SIGCONT)
            time.sleep(0.5)
        run.await_all()
        outcome = run.finish()
    assert outcome.failure is None, outcome.failure
    assert outcome.rows > 1000
    assert (outcome.lost, outcome.twice) == (0, 0)
    assert outcome.evidence.report.clean, outcome.evidence.report
    assert {name for name, count in outcome.restarts.items() if count} == set(KILLED), "what was stopped was taken for dead"
