"""Which Slurm jobs a run had: what the run directory says, and what Slurm says.

A run has one main job at a time. Its components that are jobs of their own (``Layout.joined``) are parts of it.

::

    RUN/slurm/batch.sh       the script, the same for every main job of the run
    RUN/slurm/batch-NAME.sh  the script of a component that is a job of its own and joins the run
    RUN/slurm/jobs.jsonl     one line for each job: its id, when and why it was submitted, and the component that joins
    RUN/slurm/submit.json    who submitted the run, where
    RUN/slurm/JOB.log        what the batch script printed
    RUN/cancelled            a person wants the run to end: it is not queued again
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from hpcrl.launch.slurm import Slurm, SlurmDown, SlurmMissing, SlurmRefused
from hpcrl.launch.slurm_text import Job
from hpcrl.run.directory import RunDirectory

Why = Literal["submit", "successor", "resume", "again"]
# More of a run's jobs than this are not asked for.
LATEST = 3


@dataclass(frozen=True)
class Submitted:
    """A line of the run's list of jobs; ``t`` is Unix time [s], ``component`` that of a job that joins, else empty."""

    job: int
    t: float
    why: str
    component: str = ""


@dataclass(frozen=True)
class Seen:
    """What is known of a run's jobs.

    Attributes:
        jobs: the main ones as Slurm has them, the newest last; empty where it knows none of them.
        joined: those that join the run, by component; without those that Slurm forgot.
        silent: why Slurm could not be asked; empty where it answered.
    """

    jobs: tuple[Job, ...] = ()
    joined: Mapping[str, tuple[Job, ...]] = field(default_factory=dict)
    silent: str = ""

    @property
    def newest(self) -> Job | None:
        """The job that counts: one that is queued or runs, else the newest."""
        return newest(self.jobs)

    @property
    def newest_joined(self) -> dict[str, Job]:
        """The same of each component that joins, by name."""
        return {name: job for name, jobs in self.joined.items() if (job := newest(jobs)) is not None}


def newest(jobs: Sequence[Job]) -> Job | None:
    """The job that counts among those of one kind, the newest last: one that is queued or runs, else the newest."""
    counted = [job for job in jobs if job.is_active] or jobs
    return counted[-1] if counted else None


def is_cluster_run(run: RunDirectory) -> bool:
    """Whether the run was made for Slurm."""
    return script_of(run).exists()


def script_of(run: RunDirectory, joined: str = "") -> Path:
    """The batch script: of the main job, or of a component that joins."""
    return run.path / "slurm" / (f"batch-{joined}.sh" if joined else "batch.sh")


def tag_of(run: RunDirectory, joined: str = "") -> str:
    """Comment of every main job of the run, or of every job of a component that joins."""
    return f"hpcrl:{run.run_id}" + (f":{joined}" if joined else "")


def record_job(run: RunDirectory, job: int, why: Why, joined: str = "") -> None:
    """Append a job to the run's list, in one write."""
    of = {"component": joined} if joined else {}
    line = json.dumps({"job": str(job), "t": round(time.time(), 3), "why": why, **of}) + "\n"
    descriptor = os.open(run.path / "slurm" / "jobs.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def recorded_jobs(run: RunDirectory, joined: str = "") -> list[Submitted]:
    """The run's main jobs, or those of a component that joins, oldest first; a line that a crash cut short is left out."""
    try:
        lines = (run.path / "slurm" / "jobs.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        try:
            value = json.loads(line)
            found.append(Submitted(int(value["job"]), float(value["t"]), str(value["why"]), str(value.get("component", ""))))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return [item for item in found if item.component == joined]


def submitted_in(run: RunDirectory) -> Path:
    """Where relative paths of the recipe begin: the folder in which it was submitted, if that is still there."""
    try:
        folder = Path(json.loads((run.path / "slurm" / "submit.json").read_text())["cwd"])
    except (OSError, ValueError, KeyError):
        return Path.cwd()
    return folder if folder.is_dir() else Path.cwd()


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
    return {run.run_id: Seen(_sorted(found[run.run_id]), joined_jobs(run, queued)) for run in runs}


def joined_jobs(run: RunDirectory, queued: Iterable[Job]) -> dict[str, tuple[Job, ...]]:
    """Those of some jobs that join a run, by component, the newest last."""
    start = tag_of(run) + ":"
    found: dict[str, list[Job]] = {}
    for job in queued:
        if job.comment.startswith(start):
            found.setdefault(job.comment.removeprefix(start), []).append(job)
    return {name: _sorted(jobs) for name, jobs in sorted(found.items())}


def _sorted(jobs: Iterable[Job]) -> tuple[Job, ...]:
    return tuple(sorted(jobs, key=lambda job: job.id))


def _history(jobs: Sequence[int], slurm: Slurm) -> list[Job]:
    if not jobs:
        return []
    try:
        return slurm.history(jobs)
    except (SlurmMissing, SlurmDown, SlurmRefused):
        # Many clusters keep none, and it is only ever asked last.
        return []
