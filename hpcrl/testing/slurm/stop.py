"""Taking a cluster down: jobs, daemons and files of its own, and nothing else."""

from __future__ import annotations

import contextlib
import shutil

from hpcrl.run.errors import DeadlineExceeded
from hpcrl.run.stop import back_off, wait_for
from hpcrl.testing.slurm import daemons
from hpcrl.testing.slurm.processes import ProcessRef, job_processes, kill, read_pid_file
from hpcrl.testing.slurm.programs import CommandFailed, output_of
from hpcrl.testing.slurm.record import Record, record_path
from hpcrl.testing.slurm.spec import ClusterSpec

CANCEL_S = 2.0
SWEEP_S = 10.0


def stop(record: Record, *, keep_logs: bool) -> None:
    """End what a record names and what belongs to it; the caller holds the host's lock.

    Raises:
        DeadlineExceeded: a process cannot be killed; the record stays, so that it can be tried again.
    """
    spec = record.spec
    controller = record.daemons.get(daemons.CONTROLLER)
    if controller is not None and controller.is_alive():
        _cancel_all(spec)
    kill(_started(record))
    # A step that was just being started may show up late.
    wait_for(f"the jobs of the cluster in {spec.folder} to end", lambda: _sweep(spec), seconds=SWEEP_S)
    for path in spec.owned[: -1 if keep_logs else None]:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    record_path(spec.folder).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        spec.folder.rmdir()


def _cancel_all(spec: ClusterSpec) -> None:
    """Let the controller end the jobs, so that waiting srun and sbatch commands hear of it; what is left is killed."""
    env = {"SLURM_CONF": str(spec.conf)}

    def is_empty() -> bool | None:
        return None if output_of(["squeue", "--noheader", "--all", "--format=%i"], seconds=CANCEL_S, env=env).strip() else True

    with contextlib.suppress(CommandFailed, DeadlineExceeded):
        if is_empty() is None:
            ids = output_of(["squeue", "--noheader", "--all", "--format=%A"], seconds=CANCEL_S, env=env).split()
            output_of(["scancel", *ids], seconds=CANCEL_S, env=env)
            wait_for("the cancelled jobs to end", is_empty, seconds=CANCEL_S, pauses=back_off(0.05, 0.2))


def _started(record: Record) -> set[ProcessRef]:
    """The daemons: those of the record, and those that an interrupted start had no time to record."""
    files = record.spec.run.glob("*.pid")
    return {*record.daemons.values(), *(process for file in files if (process := read_pid_file(file)) is not None)}


def _sweep(spec: ClusterSpec) -> bool | None:
    found = job_processes(spec.conf)
    kill(found)
    return None if found else True
