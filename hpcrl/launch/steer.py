"""Steer a run that Slurm holds: end it, go on with it, send it back into the queue."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress

from filelock import FileLock, Timeout

from hpcrl.launch.change import Changed
from hpcrl.launch.jobs import Seen, is_cluster_run, look, record_job, recorded_jobs, script_of, submitted_in, tag_of
from hpcrl.launch.joined import expect_joined, queue_joined
from hpcrl.launch.layout import Layout
from hpcrl.launch.queue_once import NotKnown, queue_once
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

GO_ON = "go on with it: hpcrl run --resume {}"


def cancel(run: RunDirectory, slurm: Slurm, *, now: bool = False) -> str:
    """End a run, with the jobs that join it; what was done, as a sentence. A running one saves first, unless it is to end now.

    Raises:
        CheckFailed: it is no run of Slurm's, or no job of it is queued or runs.
        SlurmDown: Slurm does not answer; the run is marked, so that it is not queued again.
    """
    must_be_slurms(run, "press Ctrl-C where it runs")
    # First the mark: a job that ends meanwhile must not come back.
    mark = run.path / "cancelled"
    marked = mark.exists()
    write_json(mark, {"t": round(time.time(), 3), "user": os.getuid()})
    seen = _seen(run, slurm)
    job, joined = _active(seen.newest), [item.id for item in seen.newest_joined.values() if item.is_active]
    if job is None and not joined:
        if not marked:
            mark.unlink()
        raise CheckFailed([f"run {run.path} has no job that is queued or runs; nothing was ended"])
    if job is not None and job.state == "RUNNING" and not now:
        # It ends those that join it.
        slurm.signal_batch(job.id, SAVE)
        return f"job {job.id} saves and ends; to end it at once: hpcrl cancel --now {run.path}"
    # The main one first: it would submit the others again.
    ended = [*([job.id] if job is not None else []), *joined]
    for number in ended:
        slurm.cancel(number)
    words = f"job {ended[0]} is" if len(ended) == 1 else f"jobs {', '.join(map(str, ended))} are"
    return f"{words} cancelled"


def requeue(run: RunDirectory, slurm: Slurm, *, now: bool = False) -> str:
    """Send a running run back into the queue; what was done, as a sentence. It saves first, unless it is to end now.

    Raises:
        CheckFailed: it is no run of Slurm's, none of its jobs runs, or it is cancelled.
        SlurmDown: Slurm does not answer.
    """
    must_be_slurms(run, "it has no queue to go back into")
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


def resume(
    run: RunDirectory, slurm: Slurm, *, hold: bool = False, after: int | None = None, changed: Changed | None = None
) -> int:
    """Submit a further job for a run; returns its id. A job that is in the queue unrecorded is found and recorded instead.

    Jobs that join it are submitted too, where they are not in the queue already.

    Args:
        changed: what the job is made from, if not from what the jobs before were.

    Raises:
        CheckFailed: it is no run of Slurm's, a job of it is queued or runs, or Slurm refuses the job.
        SlurmDown: Slurm does not answer; nothing is queued.
        NotKnown: the job may be queued.
    """
    must_be_slurms(run, GO_ON.format(run.path))
    try:
        with FileLock(run.path / "slurm" / ".lock", timeout=LOCK_S):
            return _resume(run, slurm, hold, after, changed)
    except Timeout as error:
        raise CheckFailed([f"another `hpcrl resume` of {run.path} is at work; wait for it"]) from error


def _resume(run: RunDirectory, slurm: Slurm, hold: bool, after: int | None, changed: Changed | None) -> int:
    known = [item.job for item in recorded_jobs(run)]
    seen = _seen(run, slurm)
    job = _active(seen.newest)
    if job is not None and job.id in known:
        what = "runs" if job.state == "RUNNING" else f"is {job.state.lower()}"
        raise CheckFailed([f"job {job.id} of run {run.path} {what}; `hpcrl status {run.path}` shows it"])
    if changed is not None:
        held = [item.id for item in (job, *seen.newest_joined.values()) if item is not None and item.is_active]
        if held:
            raise CheckFailed(
                [f"job {held[0]} of run {run.path} is in the queue as the run was before; scancel {held[0]} first"]
            )
        try:
            changed.write(run)
        except OSError as error:
            raise CheckFailed([f"run {run.path} cannot be changed: {error}; ask again once it can be written"]) from error
    (run.path / "cancelled").unlink(missing_ok=True)
    expect_joined(run)
    if job is not None:
        record_job(run, job.id, "resume")
        return job.id
    facts = JobFacts.from_json((run.path / "job.json").read_text(), run.path)
    options = [f"--chdir={submitted_in(run)}"] + (["--hold"] if hold else [])
    options += [f"--dependency=afterany:{after}"] if after is not None else []
    try:
        number = queue_once(
            slurm, script_of(run), options, tag=tag_of(run), name=facts.name, user=os.getuid(), before=_ended(run, slurm, known)
        )
    except SlurmRefused as error:
        raise CheckFailed([why_refused(error.said)]) from error
    record_job(run, number, "resume")
    for component in Layout.from_json((run.path / "layout.json").read_text()).joined:
        if _active(seen.newest_joined.get(component.name)) is None:
            # One that is refused or not known is submitted by the main job when it starts.
            with suppress(SlurmRefused, SlurmDown, NotKnown):
                queue_joined(slurm, run, component, facts, "resume", leader=number)
    return number


def _active_job(run: RunDirectory, slurm: Slurm) -> Job | None:
    return _active(_seen(run, slurm).newest)


def _active(job: Job | None) -> Job | None:
    return job if job is not None and job.is_active else None


def _seen(run: RunDirectory, slurm: Slurm) -> Seen:
    seen = look([run], slurm, settled=[run.run_id])[run.run_id]
    if seen.silent:
        raise SlurmDown(f"{seen.silent}; try again when Slurm answers")
    return seen


def _ended(run: RunDirectory, slurm: Slurm, known: Sequence[int]) -> list[int]:
    return [*known, *(job.id for job in look([run], slurm, settled=[run.run_id])[run.run_id].jobs)]


def must_be_slurms(run: RunDirectory, instead: str) -> None:
    """Refuse a run that has no job, with what to do instead."""
    if not is_cluster_run(run):
        raise CheckFailed([f"run {run.path} was started by `hpcrl run` and has no job; {instead}"])
