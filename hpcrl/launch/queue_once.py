"""Queue a script exactly once, though ``sbatch`` may fail or hang after it queued the job: jobs are looked for by their tag."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hpcrl.launch.slurm import Slurm, SlurmDown, SlurmMissing, SlurmRefused
from hpcrl.launch.slurm_text import Job
from hpcrl.run.errors import DeadlineExceeded, HpcrlError
from hpcrl.run.stop import back_off, wait_for

TRIES = 2
# So long a request that was cut off may still lie in the controller before the job appears.
SETTLE_S = 10.0


class NotKnown(HpcrlError):
    """It is not known whether a job was queued."""


def queue_once(
    slurm: Slurm,
    script: Path,
    options: Sequence[str],
    *,
    tag: str,
    name: str,
    user: int,
    before: Sequence[int] = (),
    settle_s: float = SETTLE_S,
) -> int:
    """The id of the one job that is queued.

    Args:
        tag: comment of the job; no other job has it but those of ``before``.
        name: name of the job, by which accounting finds it.
        user: uid that owns it.
        before: older jobs of the run.
        settle_s: how long to look for a job after ``sbatch`` failed or was cut off [s].

    Raises:
        SlurmMissing: no ``sbatch``; nothing is queued.
        SlurmRefused: Slurm does not take the job; nothing is queued.
        NotKnown: Slurm answered neither ``sbatch`` nor the search for the job.
    """
    for number in range(TRIES):
        try:
            job = slurm.submit(script, options)
        except SlurmMissing:
            raise
        except (SlurmRefused, SlurmDown) as error:
            found = _look(slurm, tag, name, user, before, error, settle_s)
            if found:
                return _only_oldest(slurm, found)
            if isinstance(error, SlurmRefused):
                raise
            if number + 1 == TRIES:
                raise SlurmRefused("sbatch", f"{error}; the job was not queued") from error
            continue
        if number:
            # The first one may have come after it was looked for.
            return _only_oldest(slurm, _tagged(slurm, tag, user, before) or [Job(id=job, state="PENDING")])
        return job
    raise AssertionError("the last try returns or raises")


def _look(slurm: Slurm, tag: str, name: str, user: int, before: Sequence[int], error: HpcrlError, settle_s: float) -> list[Job]:
    """Jobs that were queued all the same; one that was refused is looked for once, one that was cut off for a while."""
    seconds = settle_s if isinstance(error, SlurmDown) else 0.0
    try:
        return wait_for(
            f"a job tagged {tag}",
            lambda: _tagged(slurm, tag, user, before) or None,
            seconds=seconds,
            pauses=back_off(0.2, 2.0),
        )
    except DeadlineExceeded:
        return _in_history(slurm, tag, name, before)
    except (SlurmDown, SlurmRefused) as silent:
        raise NotKnown(
            f"it is not known whether the job was queued: sbatch failed ({error}), and Slurm did not say what is queued "
            f"({silent}); when it answers again, `hpcrl resume` finds the job or submits it, never both"
        ) from error


def _tagged(slurm: Slurm, tag: str, user: int, before: Sequence[int]) -> list[Job]:
    return [job for job in slurm.queue(users=[user]) if job.comment == tag and job.id not in before]


def _in_history(slurm: Slurm, tag: str, name: str, before: Sequence[int]) -> list[Job]:
    try:
        return [job for job in slurm.history_of_name(name) if job.comment == tag and job.id not in before]
    except (SlurmMissing, SlurmDown, SlurmRefused):
        return []


def _only_oldest(slurm: Slurm, jobs: Sequence[Job]) -> int:
    first, *others = sorted(job.id for job in jobs if job.is_active) or sorted(job.id for job in jobs)
    for job in others:
        slurm.cancel(job)
    return first
