"""What a run is doing, in a word and a clause, from its own records and from what Slurm says; pure.

Records come first: they are the run's own. Slurm adds why a job waits, and how one ended that could leave no record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from hpcrl.launch.reasons import how_it_ended, is_held, why_it_waits
from hpcrl.launch.slurm_text import Job

Records = Literal["running", "finished", "failed", "stopped"]

_QUEUED = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT")
_ENDED = {"CANCELLED": "cancelled", "TIMEOUT": "timed out", "PREEMPTED": "preempted"}


@dataclass(frozen=True)
class Standing:
    """A word for a table, and why; the clause may be empty.

    Attributes:
        is_over: nothing further happens by itself.
    """

    word: str
    why: str = ""
    is_over: bool = False


def standing(
    records: Records | None,
    *,
    job: Job | None = None,
    joined: Mapping[str, Job] | None = None,
    on_cluster: bool = False,
    silent: str = "",
    cancelled: bool = False,
) -> Standing:
    """Where a run stands.

    Args:
        records: how its newest attempt ended by its records; None before the first attempt.
        job: its newest job, as far as Slurm knows it.
        joined: the newest job of each component that is one of its own.
        on_cluster: it was made for Slurm.
        silent: why Slurm could not be asked.
        cancelled: a person wants it to end.
    """
    if not on_cluster:
        return Standing(records or "not started", is_over=records not in (None, "running"))
    if records == "finished":
        return Standing("finished", is_over=job is None or not job.is_active)
    if job is not None and job.is_active:
        return _active(records, job, joined or {}, cancelled)
    if records == "failed":
        return Standing("failed", is_over=True)
    if silent:
        # Nothing is known to be wrong.
        return Standing(records or "submitted", f"by its own records; Slurm cannot be asked: {silent}")
    if job is not None:
        return _ended(records, job, cancelled)
    if cancelled:
        return Standing("cancelled", is_over=True)
    if records == "stopped":
        return Standing("stopped", "it saved and ended, and no job of it is queued; `hpcrl resume` goes on", is_over=True)
    if records is None:
        return Standing("not queued", "Slurm knows no job of it; `hpcrl resume` submits it", is_over=True)
    return Standing(
        "lost", "Slurm knows its job no more and its roles left no record of their end; `hpcrl resume` goes on", is_over=True
    )


def joined_in_words(name: str, job: Job) -> str:
    """What a component's own job is doing: ``inference: job 12 waits: …``."""
    if job.state in _QUEUED:
        return f"{name}: job {job.id} waits: {why_it_waits(job.reason).replace('JOB', str(job.id))}"
    if job.state == "RUNNING":
        return f"{name}: job {job.id} runs on {', '.join(job.nodes)} in partition {', '.join(job.partitions)}"
    if job.is_active:
        return f"{name}: job {job.id} is {job.state.lower()}"
    return f"{name}: {how_it_ended(job.state).replace('the job', f'job {job.id}')}"


def _active(records: Records | None, job: Job, joined: Mapping[str, Job], cancelled: bool) -> Standing:
    if job.state in _QUEUED:
        if is_held(job.reason):
            return Standing("held", why_it_waits(job.reason).replace("JOB", str(job.id)))
        expected = f"; expected to start at {job.start}" if job.start else ""
        return Standing("waiting", why_it_waits(job.reason).replace("JOB", str(job.id)) + expected)
    if records == "failed":
        return Standing("failed", "its job is about to end")
    if cancelled:
        return Standing("ending", "it was cancelled: it saves and ends")
    if job.state in ("SUSPENDED", "STOPPED"):
        return Standing("suspended", "Slurm has stopped its processes")
    if job.state in ("COMPLETING", "STAGE_OUT"):
        return Standing("ending", "Slurm cleans up after its job")
    lacking = [joined_in_words(name, item) for name, item in joined.items() if item.state != "RUNNING"]
    if lacking and records in (None, "stopped") and job.state == "RUNNING":
        return Standing("waiting", f"its main job runs and waits for what joins it; {'; '.join(lacking)}")
    if job.state == "CONFIGURING" or records is None:
        return Standing("starting", "its nodes are there and its processes are not yet")
    return Standing("running")


def _ended(records: Records | None, job: Job, cancelled: bool) -> Standing:
    if cancelled and job.state in ("COMPLETED", "CANCELLED", "FAILED"):
        return Standing("cancelled", is_over=True)
    if job.state == "COMPLETED":
        if records == "stopped":
            return Standing("stopped", "it saved and ended; `hpcrl resume` goes on", is_over=True)
        return Standing("failed", "its job completed and its roles left no record of their end", is_over=True)
    code = f" (exit code {job.exit_code})" if job.exit_code not in ("", "0:0") else ""
    return Standing(_ENDED.get(job.state, "failed"), f"{how_it_ended(job.state)}{code}; `hpcrl resume` goes on", is_over=True)
