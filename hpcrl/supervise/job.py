"""The Slurm job that a supervisor runs in: what Slurm says of it, and how it gets back into the queue.

Each call has a deadline. What the controller does not answer is None: a controller that is down is no reason to end a run.
"""

from __future__ import annotations

import logging
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpcrl.launch.jobs import record_job, recorded_jobs, script_of
from hpcrl.launch.queue_once import queue_once
from hpcrl.launch.render import JobFacts
from hpcrl.launch.slurm import Slurm
from hpcrl.run.directory import RunDirectory

log = logging.getLogger(__name__)

CALL_S = 20.0
# Slurm's own default.
KILL_WAIT_S = 30.0


class SlurmCallFailed(Exception):
    """One of Slurm's commands ended with an error, or not in time."""


@dataclass(frozen=True)
class JobState:
    """A job, or the leader of a heterogeneous one, as ``scontrol show job`` gives it.

    Attributes:
        state: ``RUNNING``, ``PENDING``, ``CANCELLED``, …; ``COMPLETING`` while processes of an ended or requeued job end.
        reason: why it waits or ended, where Slurm says.
        end: Unix time at which Slurm ends it, None = never; a preemption moves it to the end of its grace time [s].
        preempted: its preemption has begun.
        nodes: Slurm's list of the leader's nodes, without those that it took away from the job.
        restarts: how often it was requeued, counted from when Slurm ends it for that.
    """

    state: str
    reason: str
    end: float | None
    preempted: bool
    nodes: str
    restarts: int = 0


@dataclass(frozen=True)
class Job:
    """The job around this process.

    Attributes:
        id: the leader's, in a heterogeneous job.
        restarts: how often it was requeued.
        node_lists: Slurm's node list of each component.
    """

    id: str
    restarts: int
    node_lists: tuple[str, ...]

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], components: int) -> Job:
        """From the batch script's environment; ``KeyError`` outside of a job."""
        if components == 1:
            lists: tuple[str, ...] = (environ["SLURM_JOB_NODELIST"],)
        else:
            lists = tuple(environ[f"SLURM_JOB_NODELIST_HET_GROUP_{index}"] for index in range(components))
        return cls(environ["SLURM_JOB_ID"], int(environ.get("SLURM_RESTART_COUNT", "0")), lists)

    def look(self, seconds: float = CALL_S) -> JobState | None:
        """What the controller says of the job now."""
        try:
            return parse_job(call(["scontrol", "show", "job", self.id, "--oneliner"], seconds))
        except SlurmCallFailed as error:
            log.warning("%s", error)
            return None


def hostnames(node_list: str) -> tuple[str, ...]:
    """Names in one of Slurm's lists, in its order.

    Raises:
        SlurmCallFailed: the list cannot be read.
    """
    if node_list in ("", "(null)"):
        return ()
    if not {"[", ","} & set(node_list):
        return (node_list,)
    return tuple(call(["scontrol", "show", "hostnames", node_list]).split())


def kill_wait() -> float:
    """From Slurm's SIGTERM to its SIGKILL [s]; its default where it does not say."""
    try:
        return parse_kill_wait(call(["scontrol", "show", "config"]))
    except SlurmCallFailed as error:
        log.warning("%s", error)
        return KILL_WAIT_S


def submit_successor(run: RunDirectory, facts: JobFacts, job: str) -> int:
    """Submit the run's batch script again, once, to start when this job has ended; returns the new job's id.

    Raises:
        HpcrlError: as :func:`hpcrl.launch.queue_once.queue_once`.
    """
    successor = queue_once(
        Slurm(),
        script_of(run),
        [f"--dependency=afterany:{job}"],
        tag=facts.tag,
        name=facts.name,
        user=os.getuid(),
        before=[int(job), *(item.job for item in recorded_jobs(run))],
    )
    record_job(run, successor, "successor")
    return successor


def parse_job(text: str) -> JobState | None:
    """The first job in the output of ``scontrol show job --oneliner``; the leader is the first of its components."""
    lines = text.splitlines()
    fields = dict(field.partition("=")[::2] for field in lines[0].split()) if lines else {}
    if "JobState" not in fields:
        return None
    preempted = fields.get("PreemptTime", "None") not in ("None", "Unknown", "")
    return JobState(
        fields["JobState"],
        fields.get("Reason", ""),
        _unix_time(fields.get("EndTime", "")),
        preempted,
        fields.get("NodeList", ""),
        int(fields.get("Restarts", "0")),
    )


def parse_kill_wait(text: str) -> float:
    """``KillWait`` in the output of ``scontrol show config`` [s]."""
    for line in text.splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "KillWait":
            return float(value.split()[0])
    return KILL_WAIT_S


def call(command: Sequence[str], seconds: float = CALL_S) -> str:
    """What a command prints.

    Raises:
        SlurmCallFailed: says what it said.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired as error:
        raise SlurmCallFailed(f"`{' '.join(command)}` did not answer within {seconds:g} s") from error
    except OSError as error:
        raise SlurmCallFailed(f"`{' '.join(command)}` cannot be run: {error.strerror}") from error
    if done.returncode:
        raise SlurmCallFailed(f"`{' '.join(command)}` failed: {' '.join((done.stderr or done.stdout).split())}")
    return done.stdout


def _unix_time(text: str) -> float | None:
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None
