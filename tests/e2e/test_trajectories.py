"""A run keeps what it was trained on: just the steps of its journal, also after it was stopped and went on."""

import json
import signal

import pytest

from hpcrl.run.directory import RunDirectory
from hpcrl.run.failpoints import VARIABLE
from hpcrl.run.stop import wait_for
from hpcrl.tracking.journal import JournalReader

pytestmark = pytest.mark.slow


def kept(launcher, run):
    code, output = launcher.call("trajectories", str(run), "--jsonl")
    assert code == 0, output
    return [json.loads(line) for line in output.splitlines()]


def steps_of(run):
    attempts = RunDirectory.open(run).attempts()
    return [record for attempt in attempts for _, record in JournalReader(attempt.journal).read() if record["kind"] == "step"]


def check(launcher, run, ended, steps):
    """The rows kept are those of the steps as they were trained last."""
    rows = kept(launcher, run)
    trained = {record["step"]: record for record in ended.steps()}
    assert sorted(trained) == list(range(1, steps + 1))
    assert len(rows) == steps * 16
    for step, record in trained.items():
        of_step = [row for row in rows if row["step"] == step]
        assert sorted({row["prompt"] for row in of_step}) == sorted(record["prompts"])
        assert len({row["handle"] for row in of_step}) == 16
        assert sum(row["reward"] for row in of_step) / 16 == pytest.approx(record["reward"], abs=1e-6)
        assert max(step - 1 - row["versions"][0] for row in of_step) == record["version_lag_max"]
    assert [row["step"] for row in rows] == sorted(row["step"] for row in rows)
    code, output = launcher.call("ckpt", "verify", str(run))
    assert code == 0, output


def test_a_run_that_is_stopped_and_goes_on(launcher, tmp_path):
    run = tmp_path / "r"
    process = launcher.start(*launcher.arguments(run, steps=15, trainer__save_every=2, trainer__trajectories=-1))

    def is_at(step):
        return True if (run / "attempt_1").exists() and any(one["step"] >= step for one in steps_of(run)) else None

    wait_for("step 3", lambda: is_at(3), seconds=150)
    process.send_signal(signal.SIGINT)
    first = launcher.finish(process, run)
    done = launcher.finish(launcher.start("run", "--resume", str(run)), run)
    assert done.code == 0, first.output + done.output
    check(launcher, run, done, 15)


def test_a_run_whose_trainer_is_killed_after_steps_that_no_save_holds(launcher, tmp_path, monkeypatch):
    run = tmp_path / "r"
    assert launcher.run(run, steps=2, trainer__trajectories=-1).code == 0
    # Versions 2, 3 and 4 of each attempt: none of them gets to a save.
    monkeypatch.setenv(VARIABLE, "publish.marker@3=kill")
    first = launcher.finish(launcher.start("run", "--resume", str(run), "--set", "schedule.steps=6"), run)
    assert first.code != 0
    monkeypatch.delenv(VARIABLE)
    lost = [record["step"] for record in first.steps() if record["step"] > 2]
    assert lost
    done = launcher.finish(launcher.start("run", "--resume", str(run)), run)
    assert done.code == 0, done.output
    assert [record["step"] for record in done.steps()].count(max(lost)) > 1, "it was trained again"
    check(launcher, run, done, 6)


def test_only_some_are_kept_unless_all_are_asked_for_and_none_if_none(launcher, tmp_path, own_threads):
    ended = launcher.in_process(tmp_path / "some", steps=1, trainer__trajectories=6)
    assert ended.code == 0, ended.output
    assert [row["handle"] for row in kept(launcher, ended.path)] == ["0.0", "0.1", "0.2", "0.3", "1.0", "1.1"]
    ended = launcher.in_process(tmp_path / "none", steps=1, trainer__trajectories=0)
    assert ended.code == 0, ended.output
    assert not (ended.path / "attempt_1" / "trajectories").exists()
    code, output = launcher.call("trajectories", str(ended.path))
    assert (code, "`trajectories` is 0" in output) == (2, True)
