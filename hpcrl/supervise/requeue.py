"""How a job whose run is to go on gets back into the queue."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from hpcrl.launch.slurm import Slurm, SlurmRefused
from hpcrl.run.errors import HpcrlError
from hpcrl.supervise.job import Job
from hpcrl.supervise.verdict import After, after_drain

log = logging.getLogger(__name__)

REQUEUE_S = 120.0
ASK_AGAIN_S = 2.0


def back_into_queue(
    job: Job, is_cancelled: Callable[[], bool], submit_successor: Callable[[], int] | None = None
) -> After | None:
    """Have a job start again, or its run go on in another; returns what was done.

    Args:
        submit_successor: of a job that cannot be queued again; None leaves that to others.

    Returns:
        None if Slurm did not take it back in time.
    """

    def look() -> After | None:
        return after_drain(job.look(), cancelled=is_cancelled(), restarts=job.restarts)

    deadline = time.monotonic() + REQUEUE_S
    while True:
        try:
            after = look()
            if after == "requeue" and not _requeue(job):
                # Slurm may have put it there by itself meanwhile.
                again = look()
                after = "successor" if again == "requeue" else again
            if after == "successor" and submit_successor is not None:
                log.info("job %d goes on with the run once this one has ended", submit_successor())
            if after is not None:
                return after
        except HpcrlError as error:
            log.warning("%s", error)
        if time.monotonic() > deadline:
            return None
        time.sleep(ASK_AGAIN_S)


def _requeue(job: Job) -> bool:
    try:
        Slurm().requeue(int(job.id))
    except SlurmRefused as refused:
        log.warning("%s", refused)
        return False
    return True
