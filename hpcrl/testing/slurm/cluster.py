"""A cluster to start, use and take down.

with Cluster("/tmp/cluster", nodes=4) as cluster:
    job = cluster.run("sbatch", "--parsable", "job.sh").strip()
    cluster.wait_job(job, {"COMPLETED"}, seconds=60)
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import Self

from hpcrl.run.errors import CheckFailed, DeadlineExceeded, HpcrlError
from hpcrl.run.stop import back_off, wait_for
from hpcrl.testing.slurm import daemons, start, stop
from hpcrl.testing.slurm.lock import host_lock
from hpcrl.testing.slurm.processes import kill
from hpcrl.testing.slurm.programs import CommandFailed, install, missing_packages, output_of
from hpcrl.testing.slurm.record import Record, load_record
from hpcrl.testing.slurm.spec import ClusterSpec
from hpcrl.testing.slurm.status import Status, look

COMMAND_S = 30.0
JOB_PAUSE_S = 0.2
# Longest that slurmctld leaves a change unsaved: 5 s.
SAVE_S = 5.5


class Cluster:
    """A Slurm cluster of virtual nodes on this machine. All that it knows lies in its folder, so any process can use it.

    Args:
        folder: where everything that it writes goes; it may exist.
        nodes: virtual nodes, ``n1`` on.
        gpus: GPUs of each node; there is no device behind them.
        cpus: CPUs of each node as Slurm counts them.
        accounting: with slurmdbd and a database, for ``sacct``.
        user_signal: the batch script hears of a preemption, as ``--signal=B:…`` says; False is Slurm's default.

    Raises:
        CheckFailed: such a cluster could not be.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        nodes: int = 6,
        gpus: int = 4,
        cpus: int = 32,
        accounting: bool = False,
        user_signal: bool = True,
    ) -> None:
        self.spec = ClusterSpec(
            folder=Path(folder).resolve(), nodes=nodes, gpus=gpus, cpus=cpus, accounting=accounting, user_signal=user_signal
        )
        problems = self.spec.problems()
        if problems:
            raise CheckFailed(problems)

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Cluster:
        """The cluster that was started in a folder.

        Raises:
            HpcrlError: there is none.
        """
        path = Path(folder).resolve()
        record = load_record(path)
        if record is None:
            raise HpcrlError(f"there is no cluster in {path}; start one there with `up`")
        spec = record.spec
        return cls(
            path,
            nodes=spec.nodes,
            gpus=spec.gpus,
            cpus=spec.cpus,
            accounting=spec.accounting,
            user_signal=spec.user_signal,
        )

    @property
    def env(self) -> dict[str, str]:
        """What makes Slurm's commands use this cluster."""
        return {"SLURM_CONF": str(self.spec.conf)}

    def up(self) -> Self:
        """Start it and wait until every node is idle; install what is missing. Nothing happens if it is up.

        What a crash left is cleaned away first, with the jobs that survived it.

        Raises:
            CheckFailed: programs are missing and cannot be installed from here, or the folder holds other files.
            HpcrlError: another cluster than this is up in the folder, or a daemon did not start; nothing is left running.
        """
        with host_lock():
            record = load_record(self.spec.folder)
            if record is not None and record.are_alive():
                if record.spec != self.spec:
                    raise HpcrlError(f"another cluster is up in the folder: {record.spec}; take it down first")
                return self
            install_missing(accounting=self.spec.accounting)
            if record is not None:
                stop.stop(record, keep_logs=False)
            start.start(self.spec)
        return self

    def down(self, *, keep_logs: bool = False) -> None:
        """End its jobs and daemons and remove its files; the folder too if nothing else is in it. Once is enough."""
        with host_lock():
            record = load_record(self.spec.folder)
            if record is not None:
                stop.stop(record, keep_logs=keep_logs)

    def __enter__(self) -> Self:
        return self.up()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.down()

    def run(self, *command: str, seconds: float = COMMAND_S) -> str:
        """What one of Slurm's commands prints, called on this cluster.

        Raises:
            CommandFailed: it ended with an error or not in time.
        """
        return output_of(command, seconds=seconds, env=self.env)

    def status(self) -> Status:
        """A look at daemons, nodes, partitions and jobs."""
        return look(self._record(), self.run)

    def wait_job(self, job: str | int, states: Collection[str], *, seconds: float) -> str:
        """Wait until a job, or the leader of a heterogeneous one, is in one of the states (``RUNNING``, …); returns it.

        Raises:
            DeadlineExceeded: it was not in time; says in which state it is and why.
        """
        seen = ["unknown to the controller"]

        def poll() -> str | None:
            try:
                shown = self.run("scontrol", "show", "job", str(job), "--oneliner").splitlines()[0]
            except CommandFailed as error:
                seen[0] = str(error)
                return None
            fields = dict(field.partition("=")[::2] for field in shown.split())
            seen[0] = f"{fields['JobState']}, reason {fields['Reason']}, exit code {fields['ExitCode']}"
            return fields["JobState"] if fields["JobState"] in states else None

        wanted = " or ".join(sorted(states))
        try:
            return wait_for(f"job {job} to be {wanted}", poll, seconds=seconds, pauses=back_off(0.05, JOB_PAUSE_S))
        except DeadlineExceeded as error:
            raise DeadlineExceeded(f"{error}; it is {seen[0]}; read {self.spec.logs}/slurmctld.log") from error

    def node_down(self, number: int) -> None:
        """Have the controller take node ``n<number>`` for lost, at once: its jobs end as after a crash of the node."""
        self.run("scontrol", "update", f"nodename=n{number}", "state=down", "reason=test")

    def node_up(self, number: int) -> None:
        """Undo :meth:`node_down`, and wait until the node takes jobs.

        Raises:
            DeadlineExceeded: it does not.
        """
        self.run("scontrol", "update", f"nodename=n{number}", "state=resume")
        start.wait_for_nodes(self.spec, [f"n{number}"])

    def kill_controller(self) -> None:
        """Crash slurmctld once it has saved its jobs; running steps live on.

        It saves some seconds after a change; a job that was changed since is forgotten by a crash.
        """
        saved, called = self.spec.state / "job_state", time.time()
        with contextlib.suppress(DeadlineExceeded):
            # No save for so long means that no change was waiting for one.
            wait_for("a save", lambda: (saved.exists() and saved.stat().st_mtime >= called) or None, seconds=SAVE_S)
        kill([self._record().daemons[daemons.CONTROLLER]])

    def start_controller(self) -> None:
        """Start slurmctld again, which takes up the jobs that it had, and wait until it and all nodes answer."""
        record = self._record()
        record.daemons[daemons.CONTROLLER] = daemons.controller(self.spec).start()
        record.save()
        start.wait_for_nodes(self.spec, self.spec.node_names)

    def _record(self) -> Record:
        record = load_record(self.spec.folder)
        if record is None:
            raise HpcrlError(f"the cluster in {self.spec.folder} is not up")
        return record


def install_missing(*, accounting: bool) -> None:
    """Install the programs that are not there.

    Raises:
        CheckFailed: that is not possible from here; says what to do.
    """
    missing = missing_packages(accounting=accounting)
    if missing:
        install(missing)
