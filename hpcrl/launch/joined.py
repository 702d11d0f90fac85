"""The jobs that join a run: components of services in a cheaper partition than its main job. Queue them, and let them end.

``RUN/slurm/over`` tells them that the run goes on in no job.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from hpcrl.launch.jobs import Why, joined_jobs, record_job, recorded_jobs, script_of, submitted_in, tag_of
from hpcrl.launch.layout import Component
from hpcrl.launch.queue_once import queue_once
from hpcrl.launch.render import JobFacts
from hpcrl.launch.slurm import Slurm
from hpcrl.run.atomic import write_json
from hpcrl.run.directory import RunDirectory


def queue_joined(slurm: Slurm, run: RunDirectory, component: Component, facts: JobFacts, why: Why, *, leader: int) -> int:
    """Submit a component's own job, once; returns its id.

    Args:
        leader: the main job. The other one does not start before it.

    Raises:
        HpcrlError: as :func:`hpcrl.launch.queue_once.queue_once`.
    """
    job = queue_once(
        slurm,
        script_of(run, component.name),
        [f"--chdir={submitted_in(run)}", f"--dependency=after:{leader}"],
        tag=tag_of(run, component.name),
        name=facts.name_of(component),
        user=os.getuid(),
        before=[item.job for item in recorded_jobs(run, component.name)],
    )
    record_job(run, job, why, component.name)
    return job


def expect_joined(run: RunDirectory) -> None:
    """Jobs that join the run wait for its main job from now on."""
    _over(run).unlink(missing_ok=True)


def dismiss_joined(run: RunDirectory, slurm: Slurm) -> None:
    """The run has ended: jobs that joined it end, and those that wait in the queue leave it.

    Raises:
        SlurmMissing, SlurmDown, SlurmRefused: one may be left in the queue; it ends as soon as it starts.
    """
    write_json(_over(run), {"t": round(time.time(), 3)})
    for jobs in joined_jobs(run, slurm.queue(users=[os.getuid()])).values():
        for job in jobs:
            # Those that run end by themselves, and in good order.
            if job.is_active and job.state not in ("RUNNING", "COMPLETING"):
                slurm.cancel(job.id)


def is_dismissed(run: RunDirectory) -> bool:
    """Whether jobs that join the run are to end."""
    return _over(run).exists()


def _over(run: RunDirectory) -> Path:
    return run.path / "slurm" / "over"
