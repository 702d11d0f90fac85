"""Steps trained in parts: stopped or killed between two of them, no row is trained twice and none is lost."""

from __future__ import annotations

import itertools
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from hpcrl.run.stop import wait_for
from hpcrl.testing.command_run import CommandRun

pytestmark = pytest.mark.slow

STEPS = 8
STREAMED = {
    "window": None,
    "steps": STEPS,
    "trainer__stream_minibatches": True,
    "trainer__minibatches": 2,
    "trainer__save_every": 1,
}
# The first part of the third step: whoever is to be disturbed there is there long enough.
IN_A_STEP = "batch.part@5=sleep:6"


def await_part(run: Path, process: Any) -> None:
    journal = run / "attempt_1" / "journal" / "trainer.0.jsonl"

    def there() -> bool | None:
        assert process.poll() is None
        text = journal.read_text() if journal.exists() else ""
        return True if '"step":2,"version":2' in text and text.rindex('"name":"train"') > text.rindex('"version":2') else None

    wait_for("the third step to be under way", there, seconds=150)


def assert_whole(ended: Any, launcher: Any) -> None:
    steps = {step["step"]: step for step in ended.steps()}
    assert sorted(steps) == list(range(1, STEPS + 1))
    assert sorted(itertools.chain.from_iterable(step["prompts"] for step in steps.values())) == list(range(4 * STEPS))
    assert {step["updates"] for step in steps.values()} <= {0, 1, 2}
    assert max(step["updates"] for step in steps.values()) == 2
    code, output = launcher.call("verify", str(ended.path))
    assert code == 0, output


def test_a_stop_between_two_parts_goes_back_to_where_the_step_began(launcher: Any, tmp_path: Path, monkeypatch: Any):
    run = tmp_path / "run"
    monkeypatch.setenv("HPCRL_FAILPOINT", IN_A_STEP)
    process = launcher.start(*launcher.arguments(run, **STREAMED))
    await_part(run, process)
    process.send_signal(signal.SIGINT)
    stopped = launcher.finish(process, run, 90)
    assert stopped.code == 130, stopped.output
    assert stopped.cursor()["step"] == len(stopped.steps()) == 2
    monkeypatch.delenv("HPCRL_FAILPOINT")
    again = launcher.finish(launcher.start("run", "--resume", str(run)), run)
    assert again.code == 0, again.output
    assert_whole(again, launcher)


def test_a_kill_between_two_parts_trains_no_row_twice(launcher: Any, tmp_path: Path, monkeypatch: Any):
    run = tmp_path / "run"
    monkeypatch.setenv("HPCRL_FAILPOINT", IN_A_STEP)
    process = launcher.start(*launcher.arguments(run, **STREAMED))
    held = CommandRun(process, run)
    await_part(run, process)
    held.kill("trainer.0")
    ended = launcher.finish(process, run, 240)
    assert ended.code == 0, ended.output
    # Saves are made while training goes on, so that the newest may not have been committed.
    assert re.search(r"trainer\.0 was killed by SIGKILL; the run goes on from step [012] ", ended.output), ended.output
    outcome = held.finish()
    assert (outcome.lost, outcome.twice) == (0, 0)
    assert_whole(ended, launcher)
