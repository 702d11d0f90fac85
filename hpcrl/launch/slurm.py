"""Slurm's commands: each with a deadline, its answer as a type, its failure as an error that says what to do.

Every method is one call of one command, however many nodes or components a job has.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from hpcrl.launch.environment import submit_environment
from hpcrl.launch.slurm_text import (
    HISTORY_FORMAT,
    NODES_FORMAT,
    QUEUE_FORMAT,
    Job,
    NodeKind,
    Partition,
    read_history,
    read_nodes,
    read_partitions,
    read_queue,
)
from hpcrl.run.errors import HpcrlError, host

CALL_S = 30.0
# A busy controller takes its time, and a submission that was cut off has to be looked for.
SUBMIT_S = 60.0
RETRY_PAUSES_S = (0.5, 2.0)
# Its own commands read these as options.
_CLIENT_OPTIONS = ("SQUEUE_", "SINFO_", "SCANCEL_", "SCONTROL_", "SACCT_")
# Slurm's client waited and gave up by itself: to ask again at once is no use.
_DOWN = re.compile(
    r"Unable to contact slurm controller|Connection refused|backup controller|Unable to connect to database|"
    r"slurm_persist_conn_open|Database is busy|Problem talking to the database|Sending PersistInit",
    re.IGNORECASE,
)
# It was there and too busy.
_BUSY = re.compile(
    r"Socket timed out|Zero Bytes were transmitted|temporarily un(able|available)|Message receive failure|"
    r"Unexpected message received|Connection reset",
    re.IGNORECASE,
)
_PREFIX = re.compile(r"^(?:\w+: )?(?:error: )?(?:Batch job submission failed: |allocation failure: )?", re.MULTILINE)


class SlurmMissing(HpcrlError):
    """A command of Slurm is not installed here."""


class SlurmDown(HpcrlError):
    """Slurm did not answer, or not in time; whether it did what it was asked is not known."""


class SlurmRefused(HpcrlError):
    """Slurm answered no.

    Attributes:
        said: its own words.
    """

    def __init__(self, command: str, said: str) -> None:
        self.said = said
        super().__init__(f"{command}: {said}")


class Slurm:
    """The commands, as the environment finds them.

    Args:
        seconds: deadline of a query; of a submission, ``submit_seconds``.
    """

    def __init__(
        self, environ: Mapping[str, str] | None = None, *, seconds: float = CALL_S, submit_seconds: float = SUBMIT_S
    ) -> None:
        base = submit_environment(os.environ if environ is None else environ)
        self._environ = {name: value for name, value in base.items() if not name.startswith(_CLIENT_OPTIONS)} | {"LC_ALL": "C"}
        # What a job gets of it: the person's own locale.
        self._job_environ = base
        self._seconds, self._submit_seconds = seconds, submit_seconds

    def submit(self, script: Path, options: Sequence[str] = ()) -> int:
        """Queue a script, once; returns the job's id.

        Raises:
            SlurmMissing: no ``sbatch``.
            SlurmDown: whether it was queued is not known.
            SlurmRefused: ``sbatch`` ended with an error; a broken one may have queued all the same.
        """
        answer = self._call(
            ["sbatch", "--parsable", *options, str(script)], seconds=self._submit_seconds, environ=self._job_environ
        )
        match = re.search(r"^(\d+)(?:;\S+)?\s*$", answer[0], re.MULTILINE)
        if match is None:
            raise SlurmDown(f"sbatch printed no job id but {answer[0].strip()[:200]!r}")
        return int(match[1])

    def test(self, script: str, options: Sequence[str] = ()) -> str:
        """Have Slurm judge a script without queueing it; returns what it says, such as when the job would start.

        Raises:
            SlurmMissing, SlurmDown, SlurmRefused: as :meth:`submit`; nothing is queued in any case.
        """
        _, said = self._call(["sbatch", "--test-only", *options], text=script, seconds=self._submit_seconds)
        return said.strip().removeprefix("sbatch: ")

    def queue(self, *, users: Iterable[int] = (), jobs: Iterable[int] = ()) -> list[Job]:
        """Jobs that wait, run, or ended some minutes ago: of these users (uids), or of these ids; unknown ids are left out.

        Raises:
            SlurmMissing, SlurmDown, SlurmRefused: no answer.
        """
        which = [f"--user={','.join(map(str, users))}"] if users else []
        ids = ",".join(map(str, jobs))
        which += [f"--jobs={ids}"] if ids else []
        try:
            return read_queue(self._ask(["squeue", "--noheader", "--states=all", f"--format={QUEUE_FORMAT}", *which]))
        except SlurmRefused as error:
            if "Invalid job id" in error.said:
                return []
            raise

    def history(self, jobs: Iterable[int]) -> list[Job]:
        """The same from accounting, for jobs that ended long ago.

        Raises:
            SlurmMissing, SlurmDown, SlurmRefused: the cluster keeps none, or it does not answer.
        """
        return self._history(f"--jobs={','.join(map(str, jobs))}")

    def history_of_name(self, name: str) -> list[Job]:
        """Jobs of that name since yesterday, from accounting; errors as :meth:`history`."""
        return self._history(f"--name={name}", "--starttime=now-1days")

    def partitions(self) -> dict[str, Partition]:
        """Every partition by name; errors as :meth:`queue`."""
        return read_partitions(self._ask(["scontrol", "show", "partition", "--oneliner"]))

    def nodes(self) -> list[NodeKind]:
        """Which kinds of nodes each partition has; errors as :meth:`queue`."""
        return read_nodes(self._ask(["sinfo", "--noheader", "--all", "--exact", f"--format={NODES_FORMAT}"]))

    def cancel(self, job: int) -> None:
        """End a job, queued or running, with all of its components; errors as :meth:`queue`."""
        self._ask(["scancel", str(job)])

    def signal_batch(self, job: int, name: str) -> None:
        """Send a signal to the batch script of a running job and to nothing else; errors as :meth:`queue`."""
        self._call(["scancel", "--batch", f"--signal={name}", str(job)], seconds=self._seconds)

    def requeue(self, job: int) -> None:
        """End a running job and put it back into the queue; errors as :meth:`queue`."""
        self._call(["scontrol", "requeue", str(job)], seconds=self._seconds)

    def _history(self, *which: str) -> list[Job]:
        # Without duplicates, of a requeued job the newest life alone is shown.
        options = ("--noheader", "--parsable2", "--allocations", f"--format={HISTORY_FORMAT}")
        return read_history(self._ask(["sacct", *options, *which]))

    def _ask(self, command: Sequence[str]) -> str:
        """The output of a command that does no harm when it is called again, within one deadline."""
        deadline = time.monotonic() + self._seconds
        for pause in (*RETRY_PAUSES_S, 0.0):
            try:
                return self._call(command, seconds=max(1.0, deadline - time.monotonic()))[0]
            except SlurmDown as error:
                if not pause or not _BUSY.search(str(error)) or time.monotonic() + pause > deadline:
                    raise
                time.sleep(pause)
        raise AssertionError("the last pause is zero")

    def _call(
        self, command: Sequence[str], *, seconds: float, text: str = "", environ: Mapping[str, str] | None = None
    ) -> tuple[str, str]:
        name = command[0]
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=dict(self._environ if environ is None else environ),
                start_new_session=True,
            )
        except OSError as error:
            raise SlurmMissing(
                f"Slurm's `{name}` cannot be called on {host()} ({error.strerror}): go to a login node of the cluster, or load "
                "the site's Slurm module; to run a recipe on this machine instead: hpcrl run RECIPE"
            ) from error
        try:
            out, said = process.communicate(text, timeout=seconds)
        except subprocess.TimeoutExpired as error:
            _end(process)
            raise SlurmDown(
                f"`{name}` did not answer within {seconds:g} s; see with `scontrol ping` whether the controller is up"
            ) from error
        if process.returncode == 0:
            return out, said
        if process.returncode < 0:
            # Slurm itself ends what runs in a job that is requeued, the command that asked for it too.
            raise SlurmDown(f"`{name}` was killed by signal {-process.returncode}, so what came of it is not known")
        said = _PREFIX.sub("", said.strip() or out.strip()) or f"exit code {process.returncode}"
        if _DOWN.search(said) or _BUSY.search(said):
            raise SlurmDown(f"`{name}`: {said.splitlines()[-1]}; see with `scontrol ping` whether the controller is up")
        raise SlurmRefused(name, "; ".join(dict.fromkeys(said.splitlines())))


def _end(process: subprocess.Popen[str]) -> None:
    # The group, since a child of a wrapper would hold the pipes open.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
