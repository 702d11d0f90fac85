"""Ctrl-C in the middle, and going on from there: no step lost, none repeated, and the same numbers as without it."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from hpcrl.run.stop import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_threads")]

STEPS = 40


@pytest.fixture(scope="module")
def whole(launcher: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Without an interruption."""
    ended = launcher.in_process(tmp_path_factory.mktemp("whole") / "run", steps=STEPS)
    assert ended.code == 0, ended.output
    return ended


@pytest.fixture(scope="module")
def stopped(launcher: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """In processes, Ctrl-C after the second step."""
    run = tmp_path_factory.mktemp("stopped") / "run"
    process = launcher.start(*launcher.arguments(run, steps=STEPS))
    journal = run / "attempt_1" / "journal" / "trainer.0.jsonl"

    def trained() -> bool | None:
        return (
            True if process.poll() is not None or (journal.exists() and '"step":2,"version":2' in journal.read_text()) else None
        )

    wait_for("two steps to be trained", trained, seconds=120)
    process.send_signal(signal.SIGINT)
    return launcher.finish(process, run, 60)


def test_ctrl_c_saves_and_says_how_to_go_on(stopped: Any, launcher: Any, nothing_left: Any):
    assert stopped.code == 130, stopped.output
    done = len(stopped.steps())
    assert 2 <= done < STEPS
    assert stopped.cursor()["step"] == done, "the last step trained is the step saved"
    assert f"hpcrl run --resume {stopped.path}" in stopped.output
    assert (stopped.path / "report.html").exists()
    assert launcher.call("status", str(stopped.path))[1].splitlines()[0].endswith("stopped")
    nothing_left(stopped)


def test_the_run_goes_on_without_a_gap_and_bit_for_bit(stopped: Any, whole: Any, launcher: Any):
    before = len(stopped.steps())
    code, output = launcher.call("run", "--resume", str(stopped.path), "--in-process")
    assert code == 0, output
    assert [step["step"] for step in stopped.steps()] == list(range(1, STEPS + 1))
    assert stopped.computed() == whole.computed()
    assert stopped.published() == whole.published()
    assert stopped.cursor() == {"step": STEPS, "prompts": 4 * STEPS, "beyond": []}
    # Of an attempt in processes and one in this process.
    code, output = launcher.call("verify", str(stopped.path))
    assert code == 0, output
    assert [record["version"] for record in stopped.records("served")][-1] == STEPS
    assert len(list(stopped.path.glob("attempt_*"))) == 2
    shown = launcher.call("status", str(stopped.path))[1]
    assert shown.splitlines()[0].endswith("finished")
    assert f"step {STEPS}/{STEPS}" in shown
    assert f"step {before}/{STEPS}" in launcher.call("status", str(stopped.path), "--attempt", "1")[1]


def test_resuming_a_finished_run_trains_nothing_more(whole: Any, launcher: Any):
    code, output = launcher.call("run", "--resume", str(whole.path), "--in-process")
    assert code == 0, output
    assert len(whole.steps()) == STEPS
    assert launcher.call("status", str(whole.path))[1].splitlines()[0].endswith("finished")


def test_a_finished_run_goes_on_for_more_steps_and_with_another_rate(whole: Any, launcher: Any):
    again = ("run", "--resume", str(whole.path), "--in-process", "--set")
    code, output = launcher.call(*again, "schedule.prompts_per_step=2")
    assert code == 2
    assert "begin a new run" in output
    assert "nothing was started" in output
    assert json.loads((whole.path / "recipe.json").read_text())["schedule"]["prompts_per_step"] == 4
    code, output = launcher.call(*again, f"schedule.steps={STEPS + 1}", "--set", "trainer.lr=1e-5")
    assert code == 0, output
    assert [step["step"] for step in whole.steps()] == list(range(1, STEPS + 2))
    assert whole.steps()[-1]["lr"] == pytest.approx(1e-5)
    code, output = launcher.call("verify", str(whole.path))
    assert code == 0, output
    # What the attempts before it ran stays known.
    kept = [path.parent.name for path in whole.path.glob("attempt_*/recipe.json")]
    assert kept == [f"attempt_{len(list(whole.path.glob('attempt_*'))) - 1}"]
