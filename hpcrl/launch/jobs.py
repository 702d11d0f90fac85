"""Which Slurm jobs a run had: what the run directory says, and what Slurm says.

::

    RUN/slurm/batch.sh       the script, the same for every job of the run
    RUN/slurm/jobs.jsonl     one line for each job: its id, when and why it was submitted
    RUN/slurm/submit.json    who submitted the run, where
    RUN/slurm/JOB.log        what the batch script printed
    RUN/cancelled            a person wants the run to end: it is not queued again
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hpcrl.launch.slurm import Slurm, SlurmDown, SlurmMissing, SlurmRefused
from hpcrl.launch.slurm_text import Job
from hpcrl.run.directory import RunDirectory

Why = Literal["submit", "successor", "resume"]
# More of a run's jobs than this are not asked for.
LATEST = 3


@dataclass(frozen=True)
class Submitted:
    """A line of the run's list of jobs; ``t`` is Unix time [s]."""

    job: int
    t: float
    why: str


@dataclass(frozen=True)
class Seen:
    """What is known of a run's jobs.

    Attributes:
        jobs: as Slurm has them, the newest last; empty where it knows none of them.
        silent: why Slurm could not be asked; empty where it answered.
    """

    jobs: tuple[Job, ...] = ()
    silent: str = ""

    @property
    def newest(self) -> Job | None:
        """The job that counts: one that is queued or runs, else the newest."""
        jobs = [job for job in self.jobs if job.is_active] or self.jobs
        return jobs[-1] if jobs else None


def is_cluster_run(run: RunDirectory) -> bool:
    """Whether the run was made for Slurm."""
    return script_of(run).exists()


def script_of(run: RunDirectory) -> Path:
    """The batch script."""
    return run.path / "slurm" / "batch.sh"


def tag_of(run: RunDirectory) -> str:
    """Comment of every job of the run."""
    return f"hpcrl:{run.run_id}"


def record_job(run: RunDirectory, job: int, why: Why) -> None:
    """Append a job to the run's list, in one write."""
    line = json.dumps({"job": str(job), "t": round(time.time(), 3), "why": why}) + "\n"
    descriptor = os.open(run.path / "slurm" / "jobs.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def recorded_jobs(run: RunDirectory) -> list[Submitted]:
    """The run's list, oldest first; a line that a crash cut short is left out."""
    try:
        lines = (run.path / "slurm" / "jobs.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        try:
            value = json.loads(line)
            found.append(Submitted(int(value["job"]), float(value["t"]), str(value["why"])))
        except (ValueError, KeyError, TypeError):
            continue
    return found


def is_cancelled(run: RunDirectory) -> bool:
    """Whether a person wants the run to end."""
    return (run.path / "cancelled").exists()


def look(runs: Sequence[RunDirectory], slurm: Slurm, settled: Iterable[str] = ()) -> Mapping[str, Seen]:
    """What Slurm knows of the jobs of these runs, by run id: one call of ``squeue``, and at most one of ``sacct``.

    Jobs are found by their tag too, since a submission that was cut off left no line in the list.

    Args:
        settled: ids of runs whose own records say how they ended; accounting is not asked about them.
    """
    runs = [run for run in runs if is_cluster_run(run)]
    if not runs:
        return {}
    listed = {run.run_id: [item.job for item in recorded_jobs(run)][-LATEST:] for run in runs}
    owners = sorted({run.path.stat().st_uid for run in runs})
    try:
        queued = slurm.queue(users=owners)
    except (SlurmMissing, SlurmDown, SlurmRefused) as error:
        return {run.run_id: Seen(silent=str(error)) for run in runs}
    found = {run.run_id: [job for job in queued if job.comment == tag_of(run) or job.id in listed[run.run_id]] for run in runs}
    known = set(settled)
    asked = [listed[run.run_id][-1] for run in runs if not found[run.run_id] and listed[run.run_id] and run.run_id not in known]
    old = {job.id: job for job in _history(asked, slurm)}
    for run_id, ids in listed.items():
        found[run_id] = found[run_id] or [old[number] for number in ids if number in old]
    return {run_id: Seen(tuple(sorted(jobs, key=lambda job: job.id))) for run_id, jobs in found.items()}


def _history(jobs: Sequence[int], slurm: Slurm) -> list[Job]:
    if not jobs:
        return []
    try:
        return slurm.history(jobs)
    except (SlurmMissing, SlurmDown, SlurmRefused):
        # Many clusters keep none, and it is only ever asked last.
        return []
