"""What follows the end of an attempt; pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from hpcrl.run.records import DoneRecord, first_failure
from hpcrl.supervise.drain import Drain
from hpcrl.supervise.job import JobState

# Attempts in a row that may move the committed step by nothing.
IDLE_ATTEMPTS = 3
NO_PROGRESS = 75
# Left of KillWait for the done-records, and before a time limit for services to end and for the requeue.
KILL_MARGIN_S = 1.5
REQUEUE_MARGIN_S = 5.0

What = Literal["done", "failed", "again"]


@dataclass(frozen=True)
class Verdict:
    """How an attempt ended.

    Attributes:
        what: the work is done; it failed for good; or it is to go on in another attempt.
        code: exit code of the job, if it is not to go on.
        stays: the job has lost nothing, so the next attempt may begin in it.
    """

    what: What
    code: int
    reason: str
    stays: bool = False


def judge_attempt(records: Collection[DoneRecord], workers: Collection[str] | None, drain: Drain | None) -> Verdict:
    """How an attempt ended, from what its processes left.

    Args:
        workers: every process that ends by itself; None = the attempt came to no plan.
        drain: the request to save and end, if it came before or with the first failure. The supervisor tells by when it saw
            them, for the clocks of nodes differ.
    """
    by_name = {record.process: record for record in records}
    if workers is not None and all(name in by_name and by_name[name].status == "done" for name in workers):
        return Verdict("done", 0, "the work is done")
    if drain is not None:
        return Verdict("again", 0, drain.reason)
    first = first_failure(records)
    if first is not None and first.killed_by:
        return Verdict("again", 0, f"{first.process} on {first.host} was killed by {first.killed_by}", stays=True)
    if first is not None:
        return Verdict("failed", first.code or 1, f"{first.process} on {first.host} failed: {first.error}")
    stopped = [record for record in records if record.status == "stopped"]
    if stopped:
        return Verdict("again", 0, f"{min(stopped, key=lambda record: record.t).process} was stopped from outside")
    lacking = sorted(set(workers or ()) - by_name.keys())
    return Verdict("again", 0, f"steps ended without a word from {', '.join(lacking) if lacking else 'their ignitors'}")


def is_stuck(began: Sequence[int], committed: int) -> bool:
    """Whether the last attempts in a row moved the committed step by nothing.

    Args:
        began: the committed step at the start of each attempt, oldest first.
        committed: the committed step now.
    """
    return len(began) >= IDLE_ATTEMPTS and all(step == committed for step in began[-IDLE_ATTEMPTS:])


After = Literal["requeue", "leave", "successor", "cancelled"]

_QUEUED = ("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD", "CONFIGURING")
_RUNNING = ("RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING")


def after_drain(state: JobState | None, *, cancelled: bool, restarts: int = 0) -> After | None:
    """How a job whose run is to go on gets back into the queue.

    Args:
        state: of the job; None = the controller does not say.
        cancelled: ``hpcrl cancel`` asked for the end of the run.
        restarts: how often the job was requeued before this life of it.

    Returns:
        ``leave`` if Slurm has put it there by itself; None if that must be asked again later.
    """
    if cancelled:
        return "cancelled"
    if state is None:
        return None
    if state.state in _RUNNING:
        return "requeue"
    if state.state in _QUEUED:
        return "leave"
    if state.state != "COMPLETING":
        return "cancelled" if state.state == "CANCELLED" else "successor"
    # This hides what the job will be. One that is queued again has no end yet, and counts a further start.
    if state.end is None or state.restarts > restarts:
        return "leave"
    return "successor" if state.reason == "TimeLimit" or state.preempted else "cancelled"


def missed_signal(state: JobState | None, signal_s: float, now: float) -> str | None:
    """What a signal was for that came to a job before anyone listened; None if there was none, or it is not known.

    Args:
        signal_s: so long before the job's end it is signalled [s].
        now: Unix time [s].
    """
    if state is not None and state.preempted:
        return "the job is preempted"
    if state is not None and state.end is not None and state.end - now < signal_s:
        return "the job is at its time limit"
    return None


def keeps_job(state: JobState | None, seconds: float, now: float) -> bool:
    """Whether a job that heard no signal can go on with another attempt.

    Args:
        state: of the job; None = not known, and then it can.
        seconds: that an attempt needs at least, to save and end [s].
        now: Unix time [s].
    """
    if state is None:
        return True
    return state.state in _RUNNING and not state.preempted and (state.end is None or state.end - now > seconds)


def seconds_left(state: JobState | None, limit: float, *, kill_wait: float, now: float) -> float:
    """How long a drain may take [s]: the recipe's limit, or less where Slurm ends the job before.

    Args:
        state: of the job; None = not known.
        kill_wait: from Slurm's SIGTERM to its SIGKILL [s].
        now: Unix time [s].
    """
    if state is None:
        return limit
    if state.state not in _RUNNING:
        room = kill_wait - KILL_MARGIN_S
    elif state.end is None:
        return limit
    else:
        # Slurm requeues a preempted job by itself; before a time limit that is still to be asked for.
        room = state.end - now + (kill_wait - KILL_MARGIN_S if state.preempted else -REQUEUE_MARGIN_S)
    return max(1.0, min(limit, room))
