"""What a cluster looks like and where its files lie; pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

MAX_NODES = 200
# A Unix socket's path holds at most 107 characters (sun_path less its end).
SOCKET_CHARACTERS = 107
# What slurmd binds below the cluster's folder for a step: "/n1/n1_JOB.STEP.COMPONENT", at its longest.
_JOB_DIGITS, _STEP_DIGITS, _COMPONENT_DIGITS = 5, 10, 1


@dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """Shape and folder of a cluster.

    Attributes:
        folder: absolute; everything that the cluster writes lies below it.
        nodes: virtual nodes, named ``n1`` on.
        gpus: GPUs of a node that Slurm hands out; there is no device behind them.
        cpus: CPUs of a node as Slurm counts them; the host may have fewer.
        accounting: with a database, so that ``sacct`` and ``sacctmgr`` answer.
        user_signal: the batch script hears of a preemption through ``--signal=B:…``; otherwise, as is Slurm's default, steps
            get SIGTERM and the batch script nothing.
    """

    folder: Path
    nodes: int = 6
    gpus: int = 4
    cpus: int = 32
    accounting: bool = False
    user_signal: bool = True

    def problems(self) -> list[str]:
        """Why this cluster could not be, one sentence each."""
        found = []
        if not 1 <= self.nodes <= MAX_NODES:
            found.append(f"nodes is {self.nodes}; a cluster has 1 to {MAX_NODES}")
        if not 0 <= self.gpus <= 64:
            found.append(f"gpus is {self.gpus}; a node has 0 to 64")
        if not 1 <= self.cpus <= 1024:
            found.append(f"cpus is {self.cpus}; a node has 1 to 1024")
        length, limit = len(str(self.folder)), self.longest_folder
        if length > limit:
            found.append(
                f"the path {self.folder} is {length} characters long; Slurm's sockets below it leave room for {limit}: "
                "choose a shorter one, such as /tmp/cluster"
            )
        if any(character.isspace() or character in "#%[],\\" for character in str(self.folder)):
            found.append(f"the path {self.folder} has a space or one of # % [ ] , \\ in it, which slurm.conf gives a meaning")
        return found

    @property
    def longest_folder(self) -> int:
        """Most characters that the folder's path may have so that every socket below it can be bound."""
        node = len(self.node_names[-1]) if 1 <= self.nodes <= MAX_NODES else 2
        step = 2 * (node + 1) + 1 + _JOB_DIGITS + 1 + _STEP_DIGITS + 1 + _COMPONENT_DIGITS
        return SOCKET_CHARACTERS - max(step, len("/run/munge.sock"))

    @property
    def name(self) -> str:
        """ClusterName: differs for each folder, the same each time."""
        return "hpcrl" + hashlib.sha256(str(self.folder).encode()).hexdigest()[:8]

    @property
    def node_names(self) -> tuple[str, ...]:
        """``n1``, ``n2``, …"""
        return tuple(f"n{number}" for number in range(1, self.nodes + 1))

    @property
    def conf(self) -> Path:
        """What ``SLURM_CONF`` must name."""
        return self.folder / "slurm.conf"

    @property
    def run(self) -> Path:
        """Folder of pid files, sockets and keys."""
        return self.folder / "run"

    @property
    def logs(self) -> Path:
        """Folder of the daemons' logs."""
        return self.folder / "log"

    @property
    def state(self) -> Path:
        """Folder in which the controller keeps jobs over a restart."""
        return self.folder / "state"

    @property
    def devices(self) -> Path:
        """Folder of the GPUs' device files."""
        return self.folder / "gpu"

    @property
    def database(self) -> Path:
        """Folder of the accounting database."""
        return self.folder / "db"

    @property
    def munge_socket(self) -> Path:
        """Where this cluster's munged listens."""
        return self.run / "munge.sock"

    @property
    def database_socket(self) -> Path:
        """Where this cluster's database listens: in the folder that only its owner can enter."""
        return self.database / "db.sock"

    @property
    def owned(self) -> tuple[Path, ...]:
        """Everything in the folder that belongs to the cluster, the log folder last."""
        files = ("slurm.conf", "cgroup.conf", "gres.conf", "slurmdbd.conf")
        folders = (self.run, self.state, self.devices, self.database, *(self.folder / node for node in self.node_names))
        return (*(self.folder / file for file in files), *folders, self.logs)


@dataclass(frozen=True, kw_only=True)
class Ports:
    """TCP ports of a cluster: a row from ``first`` on."""

    first: int

    @property
    def controller(self) -> int:
        """Port of slurmctld."""
        return self.first

    @property
    def database(self) -> int:
        """Port of slurmdbd."""
        return self.first + 1

    def of_nodes(self, count: int) -> tuple[int, int]:
        """First and last port of the slurmds."""
        return self.first + 2, self.first + 1 + count


def count_ports(spec: ClusterSpec) -> int:
    """How many ports in a row a cluster needs."""
    return 2 + spec.nodes
