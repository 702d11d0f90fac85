"""Steer a run that Slurm holds: end it, go on with it, send it back into the queue."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from hpcrl.launch.jobs import is_cluster_run, look, record_job, recorded_jobs, script_of, tag_of
from hpcrl.launch.queue_once import queue_once
from hpcrl.launch.reasons import why_refused
from hpcrl.launch.render import JobFacts
from hpcrl.launch.slurm import Slurm, SlurmDown, SlurmRefused
from hpcrl.launch.slurm_text import Job
from hpcrl.run.atomic import write_json
from hpcrl.run.directory import RunDirectory
from hpcrl.run.errors import CheckFailed

LOCK_S = 30.0
# The supervisor saves, and ends or queues the job again, by whether the run is cancelled.
SAVE = "USR1"


def cancel(run: RunDirectory, slurm: Slurm, *, now: bool = False) -> str:
    """End a run; what was done, as a sentence. A running one saves first, unless it is to end now.

    Raises:
        CheckFailed: it is no run of Slurm's, or no job of it is queued or runs.
        SlurmDown: Slurm does not answer; the run is marked, so that it is not queued again.
    """
    _must_be_slurms(run, "press Ctrl-C where it runs")
    # First the mark: a job that ends meanwhile must not come back.
    mark = run.path / "cancelled"
    marked = mark.exists()
    write_json(mark, {"t": round(time.time(), 3), "user": os.getuid()})
    job = _active_job(run, slurm)
    if job is None:
        if not marked:
            mark.unlink()
        raise CheckFailed([f"run {run.path} has no job that is queued or runs; nothing was ended"])
    if job.state == "RUNNING" and not now:
        slurm.signal_batch(job.id, SAVE)
        return f"job {job.id} saves and ends; to end it at once: hpcrl cancel --now {run.path}"
    slurm.cancel(job.id)
    return f"job {job.id} is cancelled"


def requeue(run: RunDirectory, slurm: Slurm, *, now: bool = False) -> str:
    """Send a running run back into the queue; what was done, as a sentence. It saves first, unless it is to end now.

    Raises:
        CheckFailed: it is no run of Slurm's, none of its jobs runs, or it is cancelled.
        SlurmDown: Slurm does not answer.
    """
    _must_be_slurms(run, "it has no queue to go back into")
    if (run.path / "cancelled").exists():
        raise CheckFailed([f"run {run.path} is cancelled; go on with it: hpcrl resume {run.path}"])
    job = _active_job(run, slurm)
    if job is None:
        raise CheckFailed([f"run {run.path} has no job that runs; go on with it: hpcrl resume {run.path}"])
    if job.state != "RUNNING":
        raise CheckFailed([f"job {job.id} of run {run.path} does not run ({job.state}); it is in the queue already"])
    if not now:
        slurm.signal_batch(job.id, SAVE)
        return f"job {job.id} saves and goes back into the queue"
    try:
        slurm.requeue(job.id)
    except SlurmRefused as error:
        raise CheckFailed([f"Slurm refuses to requeue job {job.id} ({error.said}); leave out --now"]) from error
    return f"job {job.id} goes back into the queue"


def resume(run: RunDirectory, slurm: Slurm, *, hold: bool = False, after: int | None = None) -> int:
    """Submit a further job for a run; returns its id. A job that is in the queue unrecorded is found and recorded instead.

    Raises:
        CheckFailed: it is no run of Slurm's, a job of it is queued or runs, or Slurm refuses the job.
        SlurmDown: Slurm does not answer; nothing is queued.
        NotKnown: the job may be queued.
    """
    _must_be_slurms(run, f"go on with it: hpcrl run --resume {run.path}")
    try:
        with FileLock(run.path / "slurm" / ".lock", timeout=LOCK_S):
            return _resume(run, slurm, hold, after)
    except Timeout as error:
        raise CheckFailed([f"another `hpcrl resume` of {run.path} is at work; wait for it"]) from error


def _resume(run: RunDirectory, slurm: Slurm, hold: bool, after: int | None) -> int:
    known = [item.job for item in recorded_jobs(run)]
    job = _active_job(run, slurm)
    if job is not None and job.id in known:
        what = "runs" if job.state == "RUNNING" else f"is {job.state.lower()}"
        raise CheckFailed([f"job {job.id} of run {run.path} {what}; `hpcrl status {run.path}` shows it"])
    (run.path / "cancelled").unlink(missing_ok=True)
    if job is not None:
        record_job(run, job.id, "resume")
        return job.id
    facts = JobFacts.from_json((run.path / "job.json").read_text(), run.path)
    options = [f"--chdir={_folder(run)}"] + (["--hold"] if hold else [])
    options += [f"--dependency=afterany:{after}"] if after is not None else []
    try:
        number = queue_once(
            slurm, script_of(run), options, tag=tag_of(run), name=facts.name, user=os.getuid(), before=_ended(run, slurm, known)
        )
    except SlurmRefused as error:
        raise CheckFailed([why_refused(error.said)]) from error
    record_job(run, number, "resume")
    return number


def _active_job(run: RunDirectory, slurm: Slurm) -> Job | None:
    seen = look([run], slurm, settled=[run.run_id])[run.run_id]
    if seen.silent:
        raise SlurmDown(f"{seen.silent}; try again when Slurm answers")
    return seen.newest if seen.newest is not None and seen.newest.is_active else None


def _ended(run: RunDirectory, slurm: Slurm, known: Sequence[int]) -> list[int]:
    return [*known, *(job.id for job in look([run], slurm, settled=[run.run_id])[run.run_id].jobs)]


def _folder(run: RunDirectory) -> Path:
    """Where relative paths of the recipe begin: the folder in which it was submitted, if that is still there."""
    try:
        folder = Path(json.loads((run.path / "slurm" / "submit.json").read_text())["cwd"])
    except (OSError, ValueError, KeyError):
        return Path.cwd()
    return folder if folder.is_dir() else Path.cwd()


def _must_be_slurms(run: RunDirectory, instead: str) -> None:
    if not is_cluster_run(run):
        raise CheckFailed([f"run {run.path} was started by `hpcrl run` and has no job; {instead}"])
