"""From which committed step each attempt of a run started, so that attempts which move nothing are noticed."""

from __future__ import annotations

import json

from hpcrl.checkpoint.cursor import read_cursor
from hpcrl.launch.jobs import recorded_jobs
from hpcrl.run.atomic import write_json
from hpcrl.run.directory import Attempt, RunDirectory


def begin(attempt: Attempt, job: str) -> None:
    """Leave ``began.json``: the step of the newest save, and the Slurm job."""
    write_json(attempt.path / "began.json", {"step": read_cursor(attempt.run.state).step, "job": job})


def committed_steps(run: RunDirectory) -> list[int]:
    """The committed step at the start of each attempt in Slurm jobs since a person last resumed the run, oldest first."""
    resumed = {str(item.job) for item in recorded_jobs(run) if item.why == "resume"}
    steps: list[int] = []
    for attempt in run.attempts():
        try:
            began = json.loads((attempt.path / "began.json").read_text())
        except FileNotFoundError:
            continue
        if began["job"] in resumed:
            resumed.remove(began["job"])
            steps = []
        steps.append(began["step"])
    return steps
