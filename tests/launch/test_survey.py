from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from hpcrl.cli.main import cli
from hpcrl.launch.jobs import record_job, recorded_jobs
from hpcrl.launch.slurm import Slurm
from hpcrl.launch.survey import Surveyed, survey
from hpcrl.run.directory import RunDirectory
from hpcrl.run.records import DoneRecord, write_done
from hpcrl.supervise.drain import ask_to_drain
from hpcrl.tracking.journal import Journal

RECIPE = {"name": "tiny", "schedule": {"steps": 3}, "groups": {"trainer": {}}}
Queue = Callable[..., Slurm]


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return make(tmp_path / "runs" / "one")


def make(path: Path, *jobs: int) -> RunDirectory:
    made = RunDirectory.create(path, name="tiny", recipe_json=json.dumps(RECIPE))
    (made.path / "slurm").mkdir()
    (made.path / "slurm" / "batch.sh").touch()
    lines = [json.dumps({"job": str(job), "t": 1.0, "why": "submit"}) for job in jobs]
    (made.path / "slurm" / "jobs.jsonl").write_text("\n".join([*lines, '{"job": "12']))
    return made


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    """Slurm with a fake ``squeue`` and ``sacct`` that print these lines and count their calls."""

    def slurm(*lines: str, history: tuple[str, ...] | None = None) -> Slurm:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        for name, text in (("squeue", lines), ("sacct", history)):
            (folder / f"{name}.out").write_text("".join(f"{line}\n" for line in text or ()))
            end = "exit 1" if text is None else f"cat {folder}/{name}.out"
            (folder / name).write_text(f"#!/bin/bash\necho {name} >> {tmp_path}/calls\n{end}\n")
            (folder / name).chmod(0o755)
        return Slurm({"PATH": f"{folder}:/usr/bin:/bin"}, seconds=5)

    return slurm


def look(run: RunDirectory, slurm: Slurm) -> Surveyed:
    (found,) = survey([run], slurm)
    return found


def test_the_newest_active_job_counts(run: RunDirectory, queue: Queue):
    tag = f"hpcrl:{run.run_id}"
    found = look(
        run, queue(f"7|CANCELLED|None|N/A||main|{tag}", f"9|PENDING|Priority|N/A||main|{tag}", "11|RUNNING|None|N/A|n1|x|")
    )
    assert (found.job_id, found.standing.word) == (9, "waiting")


def test_a_job_is_found_by_the_runs_list_where_its_comment_is_gone(tmp_path: Path, queue: Queue):
    found = look(make(tmp_path / "r", 5), queue("5|PENDING|Resources|N/A||main|"))
    assert (found.job_id, found.standing.word) == (5, "waiting")


def test_accounting_tells_of_jobs_that_slurm_has_forgotten(tmp_path: Path, queue: Queue):
    held = make(tmp_path / "r", 5)
    held.new_attempt()
    assert look(held, queue(history=("5|TIMEOUT|0:0|n1|main|",))).standing.word == "timed out"
    assert look(held, queue(history=None)).standing.word == "lost"


def test_many_runs_are_one_call_of_each_command(tmp_path: Path, queue: Queue):
    runs = [make(tmp_path / f"r{number}", number) for number in range(1, 40)]
    assert {item.standing.word for item in survey(runs, queue(history=("3|CANCELLED|0:0|n1|main|",)))} == {
        "cancelled",
        "not queued",
    }
    assert (tmp_path / "calls").read_text().split() == ["squeue", "sacct"]


def test_what_was_killed_after_the_request_to_end_did_not_fail(run: RunDirectory, queue: Queue):
    attempt = run.new_attempt()
    Journal(attempt.journal / "trainer.0.jsonl").write("step", step=1, reward=0.5)
    write_done(attempt, DoneRecord(process="trainer.0", status="failed", code=137, t=time.time() + 1))
    assert look(run, queue()).standing.word == "failed"
    ask_to_drain(attempt, "SIGUSR1 to the job", 10)
    (run.path / "cancelled").touch()
    assert look(run, queue()).standing.word == "cancelled"


def test_list_shows_step_reward_and_state(run: RunDirectory, queue: Queue, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    attempt = run.new_attempt()
    journal = Journal(attempt.journal / "trainer.0.jsonl")
    for step in (1, 2, 3):
        journal.write("step", step=step, reward=0.25 * step)
    write_done(attempt, DoneRecord(process="trainer.0", status="done"))
    local = RunDirectory.create(tmp_path / "runs" / "local", name="tiny", recipe_json=json.dumps(RECIPE))
    queue()
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli, ["list"])
    assert done.exit_code == 0, done.output
    head, *rows = (line.split() for line in done.output.splitlines())
    assert head == ["RUN", "JOB", "STATE", "STEP", "REWARD", "AGE"]
    shown = {row[0]: row[1:] for row in rows}
    assert (shown["one"][:3], shown["local"][:2]) == (["finished", "3/3", "0.750"], ["not", "started"])
    assert local.path.exists()
    (tmp_path / "nothing").mkdir()
    assert "no runs in" in CliRunner().invoke(cli, ["list", str(tmp_path / "nothing")]).output


def test_jobs_that_join_are_parts_of_the_run_and_not_the_run(run: RunDirectory, queue: Queue):
    tag = f"hpcrl:{run.run_id}"
    (run.path / "slurm" / "jobs.jsonl").unlink()
    record_job(run, 7, "submit")
    record_job(run, 9, "submit", "inference")
    assert [item.job for item in recorded_jobs(run)] == [7]
    assert [(item.job, item.component) for item in recorded_jobs(run, "inference")] == [(9, "inference")]
    slurm = queue(
        f"7|RUNNING|None|N/A|n1|main|{tag}",
        f"8|CANCELLED|None|N/A||low|{tag}:inference",
        f"9|PENDING|Priority|N/A||low|{tag}:inference",
        f"10|RUNNING|None|N/A|n2|low|{tag}x:inference",
    )
    found = look(run, slurm)
    assert (found.job_id, found.standing.word) == (7, "waiting")
    assert {name: job.id for name, job in found.joined.items()} == {"inference": 9}
    assert "job 9 waits: jobs of higher priority" in found.to_json()["joined"]["inference"]["words"]
    shown = CliRunner().invoke(cli, ["list", str(run.path.parent)]).output
    assert " 7 " in shown
    assert " 9 " not in shown
