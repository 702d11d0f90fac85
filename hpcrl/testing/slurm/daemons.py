"""The daemons of a cluster: how each is started, and how its start is awaited."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from hpcrl.run.errors import DeadlineExceeded, RoleFailed
from hpcrl.run.stop import wait_for
from hpcrl.testing.slurm.processes import ProcessRef, read_pid_file
from hpcrl.testing.slurm.programs import CommandFailed, output_of
from hpcrl.testing.slurm.spec import ClusterSpec

CONTROLLER = "slurmctld"
MUNGED = "munged"
DBD = "slurmdbd"
DATABASE = "mariadbd"
START_S = 20.0


@dataclass(frozen=True, kw_only=True)
class Daemon:
    """One daemon.

    Attributes:
        name: ``munged``, ``slurmctld``, …; of a slurmd the node's.
        command: puts itself into the background and leaves ``pid_file``.
        env: added to the environment; Slurm hands it down to its step managers.
    """

    name: str
    command: tuple[str, ...]
    pid_file: Path
    log: Path
    env: tuple[tuple[str, str], ...] = ()

    def start(self) -> ProcessRef:
        """Start it and wait for its pid file.

        Raises:
            RoleFailed: it ended with an error or left no pid file in time; quotes the end of its log.
        """
        self.pid_file.unlink(missing_ok=True)
        try:
            output_of(self.command, seconds=START_S, env=dict(self.env))
            return wait_for(f"{self.name} to write {self.pid_file}", lambda: read_pid_file(self.pid_file), seconds=START_S)
        except (CommandFailed, DeadlineExceeded) as error:
            raise RoleFailed(f"{self.name} did not start: {error}{tail(self.log)}", read=self.log) from error


def munged(spec: ClusterSpec) -> Daemon:
    """The daemon whose credentials all others trust; with a key and a socket of the cluster's own."""
    log, pid_file = spec.logs / "munged.log", spec.run / "munged.pid"
    files = {
        "key-file": spec.run / "munge.key",
        "socket": spec.munge_socket,
        "pid-file": pid_file,
        "log-file": log,
        "seed-file": spec.run / "munge.seed",
    }
    # Forced, since it refuses folders below /tmp otherwise.
    command = ("munged", "--force", *(f"--{option}={path}" for option, path in files.items()))
    return Daemon(name=MUNGED, command=command, pid_file=pid_file, log=log)


def controller(spec: ClusterSpec) -> Daemon:
    """slurmctld; takes up the jobs that it finds in the state folder."""
    return _slurm(spec, CONTROLLER, ("slurmctld", "-f", str(spec.conf)))


def node(spec: ClusterSpec, name: str) -> Daemon:
    """slurmd of a virtual node."""
    return _slurm(spec, name, ("slurmd", "-f", str(spec.conf), "-N", name))


def _slurm(spec: ClusterSpec, name: str, command: tuple[str, ...]) -> Daemon:
    return Daemon(
        name=name,
        command=command,
        pid_file=spec.run / f"{name}.pid",
        log=spec.logs / f"{name}.log",
        env=(("SLURM_CONF", str(spec.conf)),),
    )


def tail(log: Path, lines: int = 6) -> str:
    """End of a log as the end of a message; nothing if there is none."""
    with contextlib.suppress(OSError):
        last = log.read_text(errors="replace").splitlines()[-lines:]
        return "".join(f"\n    {line}" for line in last) + "\n" if last else ""
    return ""
