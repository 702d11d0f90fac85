"""Processes by pid and start time, and those that belong to a cluster without being its daemons."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hpcrl.run.errors import DeadlineExceeded

# File systems and the kernel round times, and clocks are set; no pid comes round in so short a time.
CLOCK_SLACK_S = 1.0
_PROC = Path("/proc")
# Fields of /proc/PID/stat, counted from the one after the name (proc(5) numbers them from 3).
_STATE, _PARENT, _START = 0, 1, 19


@dataclass(frozen=True)
class ProcessRef:
    """One life of a process: a pid that is used again is another process.

    Attributes:
        start: clock ticks after boot.
        boot: the kernel's id of the boot.
    """

    pid: int
    start: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> ProcessRef | None:
        """The process that has the pid now; None if it ended, though nobody may have waited for it."""
        fields = _stat(pid)
        if fields is None or fields[_STATE] in (b"Z", b"X"):
            return None
        return cls(pid, int(fields[_START]), boot_id())

    def is_alive(self) -> bool:
        """Whether this very process still runs."""
        return ProcessRef.of(self.pid) == self


def boot_id() -> str:
    """Differs after every boot."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def read_pid_file(path: Path) -> ProcessRef | None:
    """The process that wrote a pid file; None while there is no such file, or once that process has ended.

    Whoever got the pid later also started later than the file was written.
    """
    try:
        written = path.stat().st_mtime
        process = ProcessRef.of(int(path.read_text()))
    except (FileNotFoundError, ValueError):
        return None
    if process is None:
        return None
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - process.start / os.sysconf("SC_CLK_TCK")
    return process if time.time() - age < written + CLOCK_SLACK_S else None


def kill(processes: Iterable[ProcessRef], *, seconds: float = 10.0) -> None:
    """End processes with SIGKILL and wait until they have ended.

    Raises:
        DeadlineExceeded: some did not end in time, as in a system call that hangs.
    """
    deadline = time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        handles: dict[int, ProcessRef] = {}
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                handle = os.pidfd_open(process.pid)
                stack.callback(os.close, handle)
                # The handle stays with one process, so the check holds for the signal too.
                if process.is_alive():
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                    handles[handle] = process
        waiting = select.poll()
        for handle in handles:
            waiting.register(handle, select.POLLIN)
        while handles:
            left = deadline - time.monotonic()
            if left <= 0:
                pids = ", ".join(str(process.pid) for process in handles.values())
                raise DeadlineExceeded(
                    f"waited {seconds:g} s for killed processes to end: {pids}; see `ps -o stat,wchan -p PID`"
                )
            for handle, _ in waiting.poll(left * 1000):
                waiting.unregister(handle)
                del handles[handle]


def job_processes(conf: Path) -> tuple[ProcessRef, ...]:
    """Step managers and processes of jobs of the cluster with this slurm.conf, with all their descendants.

    Processes of jobs are told by their environment: it names the slurm.conf, and the virtual node, which only slurmd sets.
    Shells and commands of people who use the cluster name the slurm.conf only. Step managers are told by their socket, which
    lies beside the slurm.conf. A process that both cleared its environment and left its parents is not found.
    """
    mark = b"SLURM_CONF=" + os.fsencode(conf)
    sockets = _sockets_below(conf.parent)
    found: set[int] = set()
    children: dict[int, list[int]] = {}
    for pid in (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()):
        fields = _stat(pid)
        if fields is not None:
            children.setdefault(int(fields[_PARENT]), []).append(pid)
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            variables = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
            in_job = mark in variables and any(variable.startswith(b"SLURMD_NODENAME=") for variable in variables)
            if in_job or (_is_step_manager(pid) and (mark in variables or _holds(pid, sockets))):
                found.add(pid)
    new = list(found)
    while new:
        new = [child for pid in new for child in children.get(pid, ()) if child not in found]
        found.update(new)
    found.discard(os.getpid())
    return tuple(process for pid in sorted(found) if (process := ProcessRef.of(pid)) is not None)


def _is_step_manager(pid: int) -> bool:
    return (_PROC / str(pid) / "comm").read_text().strip() == "slurmstepd"


def _sockets_below(folder: Path) -> set[str]:
    """Unix sockets bound below a folder, as the links in /proc/PID/fd name them."""
    rows = (line.split(maxsplit=7) for line in (_PROC / "net/unix").read_text().splitlines())
    return {f"socket:[{row[6]}]" for row in rows if len(row) == 8 and row[7].startswith(f"{folder}/")}


def _holds(pid: int, sockets: set[str]) -> bool:
    return any(os.readlink(handle) in sockets for handle in (_PROC / str(pid) / "fd").iterdir())


def _stat(pid: int) -> list[bytes] | None:
    try:
        return (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
