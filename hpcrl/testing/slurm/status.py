"""What a cluster is at: daemons, nodes, partitions, jobs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from hpcrl.testing.slurm.programs import CommandFailed
from hpcrl.testing.slurm.record import Record

SERVING = {"idle", "mixed", "allocated", "completing", "reserved", "planned"}
_BETWEEN = "|"


@dataclass(frozen=True)
class DaemonState:
    """A daemon that was started; ``pid`` is the one that it had."""

    name: str
    pid: int
    alive: bool


@dataclass(frozen=True)
class NodeState:
    """A node as the controller sees it; ``reason`` says why it is down, if it is. CPUs in use, GPUs in use."""

    name: str
    state: str
    cpus_used: int
    gpus_used: str
    reason: str


@dataclass(frozen=True)
class PartitionState:
    """A partition: whose jobs give way (``preempt_mode``), and to whose (``tier``, higher wins)."""

    name: str
    available: str
    tier: int
    preempt_mode: str
    nodes: int


@dataclass(frozen=True)
class JobState:
    """A job or a component of one; ``where`` is its nodes, or why it waits."""

    id: str
    partition: str
    name: str
    state: str
    time: str
    where: str


@dataclass(frozen=True)
class Status:
    """A look at a cluster.

    Attributes:
        problems: why it is not well, one sentence each; empty if it is.
    """

    name: str
    folder: str
    version: str
    daemons: tuple[DaemonState, ...]
    nodes: tuple[NodeState, ...]
    partitions: tuple[PartitionState, ...]
    jobs: tuple[JobState, ...]
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether all is well."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """For machines."""
        return {"ok": self.ok, **asdict(self)}


def look(record: Record, run: Callable[..., str]) -> Status:
    """Look at a cluster now.

    Args:
        run: calls a command of Slurm and returns what it printed; raises CommandFailed.
    """
    daemons = tuple(DaemonState(name, process.pid, process.is_alive()) for name, process in record.daemons.items())
    logs = record.spec.logs
    problems = [f"{daemon.name} has ended; read {logs}/{daemon.name}.log" for daemon in daemons if not daemon.alive]
    if not record.whole:
        problems.append(f"the start of the cluster did not come to its end; read {logs}, then `down` and `up`")
    nodes: tuple[NodeState, ...] = ()
    partitions: tuple[PartitionState, ...] = ()
    jobs: tuple[JobState, ...] = ()
    try:
        nodes = _nodes(run)
        partitions = tuple(
            PartitionState(name, available, int(tier), mode, int(count))
            for name, available, tier, mode, count in _rows(run("sinfo", "--noheader", "--format=%R|%a|%p|%M|%D"), 5)
        )
        jobs = tuple(JobState(*row) for row in _rows(run("squeue", "--noheader", "--all", "--format=%i|%P|%j|%T|%M|%R"), 6))
    except CommandFailed as error:
        problems.append(f"the controller does not answer: {error}")
    problems += [
        f"node {node.name} is {node.state}" + (f" ({node.reason})" if node.reason else "")
        for node in nodes
        if node.state not in SERVING
    ]
    problems += [f"partition {part.name} is {part.available}" for part in partitions if part.available != "up"]
    spec = record.spec
    return Status(spec.name, str(spec.folder), record.version, daemons, nodes, partitions, jobs, tuple(problems))


def _nodes(run: Callable[..., str]) -> tuple[NodeState, ...]:
    # With a partition, since sinfo lists a node once for each.
    form = "NodeList:|,StateLong:|,CPUsState:|,GresUsed:|,Reason:200"
    text = run("sinfo", "--Node", "--noheader", "--partition=main", f"--Format={form}")
    return tuple(
        NodeState(
            name=name,
            state=state,
            cpus_used=int(cpus.split("/")[0]),
            gpus_used=gpus.removeprefix("gpu:"),
            reason="" if reason == "none" else reason,
        )
        for name, state, cpus, gpus, reason in _rows(text, 5)
    )


def _rows(text: str, columns: int) -> list[list[str]]:
    # The last column may hold the separator itself: it is free text.
    return [[cell.strip() for cell in line.split(_BETWEEN, columns - 1)] for line in text.splitlines() if line.strip()]
