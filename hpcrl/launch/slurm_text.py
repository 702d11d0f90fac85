"""What Slurm's commands print, read into types; pure. The formats are those that 22.05 to 24.11 print alike."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from hpcrl.launch.duration import minutes_of

QUEUE_FORMAT = "%i|%T|%r|%S|%N|%P|%k"
HISTORY_FORMAT = "JobID,State,ExitCode,NodeList,Partition,Comment"
NODES_FORMAT = "%R|%D|%c|%m|%G"
_UNTOLD = ("", "N/A", "Unknown", "None assigned", "(null)")
# 12, or 12+0 for a component of a heterogeneous job; arrays (12_3) are never ours.
_JOB = re.compile(r"(\d+)(?:\+(\d+))?")
_GPUS = re.compile(r"gpu(?::[^:,()]+)?:(\d+)")

ACTIVE = frozenset(
    [
        "PENDING",
        "RUNNING",
        "CONFIGURING",
        "COMPLETING",
        "SUSPENDED",
        "STOPPED",
        "SIGNALING",
        "RESIZING",
        "STAGE_OUT",
        "REQUEUED",
        "REQUEUE_HOLD",
        "REQUEUE_FED",
        "SPECIAL_EXIT",
        "RESV_DEL_HOLD",
    ]
)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job as Slurm knows it; of a heterogeneous one, all of its components.

    Attributes:
        id: of the leader.
        state: as Slurm writes it, without additions (``CANCELLED``, not ``CANCELLED by 1000``).
        reason: why it waits, as Slurm writes it; empty where it does not say.
        start: when it started or is expected to, in local time; empty = not known.
        nodes: host lists, one for each component.
    """

    id: int
    state: str
    reason: str = ""
    start: str = ""
    nodes: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    comment: str = ""
    exit_code: str = ""

    @property
    def is_active(self) -> bool:
        """Whether it waits, runs, or is about to end or to be queued again."""
        return self.state in ACTIVE


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A partition; ``None`` is no limit."""

    name: str
    state: str
    is_default: bool
    nodes: int
    max_nodes: int | None
    max_minutes: int | None
    accounts: frozenset[str] | None
    qos: frozenset[str] | None


@dataclass(frozen=True, kw_only=True)
class NodeKind:
    """Equal nodes of a partition."""

    partition: str
    count: int
    cpus: int
    memory_mb: int
    gpus: int


def read_queue(text: str) -> list[Job]:
    """Jobs from ``squeue --format=QUEUE_FORMAT``, in the order in which their first line came."""
    rows = (line.split("|", 6) for line in text.splitlines())
    return _joined(
        (row[0], Job(id=0, state=row[1], reason=_told(row[2]), start=_told(row[3]), nodes=_list(row[4]),
                     partitions=_list(row[5]), comment=_told(row[6])))
        for row in rows if len(row) == 7
    )  # fmt: skip


def read_history(text: str) -> list[Job]:
    """Jobs from ``sacct --parsable2 --format=HISTORY_FORMAT``; an older life of a requeued job is replaced by a newer one."""
    rows = (line.split("|", 5) for line in text.splitlines())
    return _joined(
        (row[0], Job(id=0, state=row[1].partition(" ")[0], exit_code=row[2], nodes=_list(row[3]), partitions=_list(row[4]),
                     comment=_told(row[5])))
        for row in rows if len(row) == 6
    )  # fmt: skip


def read_partitions(text: str) -> dict[str, Partition]:
    """Partitions by name from ``scontrol show partition --oneliner``."""
    found = {}
    for line in text.splitlines():
        values = dict(part.partition("=")[::2] for part in line.split())
        if "PartitionName" not in values:
            continue
        name = values["PartitionName"]
        found[name] = Partition(
            name=name,
            state=values.get("State", "UP"),
            is_default=values.get("Default") == "YES",
            nodes=int(values.get("TotalNodes") or 0),
            max_nodes=_number(values.get("MaxNodes", "")),
            max_minutes=_minutes(values.get("MaxTime", "")),
            accounts=_names(values.get("AllowAccounts", "ALL")),
            qos=_names(values.get("AllowQos", "ALL")),
        )
    return found


def read_nodes(text: str) -> list[NodeKind]:
    """Kinds of nodes from ``sinfo --exact --format=NODES_FORMAT``."""
    kinds = []
    for line in text.splitlines():
        row = line.split("|", 4)
        if len(row) == 5:
            name, count, cpus, memory, gres = row
            gpus = sum(int(number) for number in _GPUS.findall(gres))
            kinds.append(NodeKind(partition=name, count=int(count), cpus=_leading(cpus), memory_mb=_leading(memory), gpus=gpus))
    return kinds


def _joined(rows: Iterable[tuple[str, Job]]) -> list[Job]:
    """One job of each leader, its components in their order."""
    held: dict[int, dict[int, Job]] = {}
    for text, job in rows:
        match = _JOB.fullmatch(text.strip())
        if match:
            held.setdefault(int(match[1]), {})[int(match[2] or 0)] = job
    jobs = []
    for number, parts in held.items():
        components = [parts[index] for index in sorted(parts)]
        first = components[0]
        # A component that waits for its own resources says more than one that waits for the others.
        reason = next((item.reason for item in components if item.reason not in ("", "None", "Priority")), first.reason)
        jobs.append(
            Job(
                id=number,
                state=first.state,
                reason=reason,
                start=first.start,
                nodes=tuple(node for item in components for node in item.nodes),
                partitions=tuple(dict.fromkeys(name for item in components for name in item.partitions)),
                comment=first.comment,
                exit_code=first.exit_code,
            )
        )
    return jobs


def _told(text: str) -> str:
    return "" if text.strip() in _UNTOLD else text.strip()


def _list(text: str) -> tuple[str, ...]:
    return (_told(text),) if _told(text) else ()


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _minutes(text: str) -> int | None:
    try:
        return minutes_of(text)
    except ValueError:
        return None


def _names(text: str) -> frozenset[str] | None:
    return None if text in ("ALL", "(null)", "") else frozenset(text.split(","))


def _leading(text: str) -> int:
    match = re.match(r"\d+", text)
    return int(match[0]) if match else 0
