"""The process that writes a rank's saves, as the trainer sees it."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from contextlib import suppress
from multiprocessing.connection import Pipe

import msgspec

from hpcrl.checkpoint.state.plan import Planned
from hpcrl.checkpoint.state.request import Failed, Job, Reply, decode_reply, encode
from hpcrl.run.errors import host

_MODULE = "hpcrl.checkpoint.state.writer"
# Slurm, a terminal and the ignitor signal whole groups; only its trainer ends the writer.
_NOT_HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class WriterProcess:
    """Started once, for all saves.

    Args:
        memory: descriptor of the shared memory.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, planned: Planned, memory: int) -> None:
        self._connection, its = Pipe()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _NOT_HEARD)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _MODULE, str(its.fileno()), str(memory)],
                stdin=subprocess.DEVNULL,
                # It has nothing to compute there, and a context would take memory of the GPU.
                env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
                pass_fds=(its.fileno(), memory),
            )
        except OSError:
            self._connection.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            its.close()
        self._setup: bytes | None = pickle.dumps(planned)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def ask(self, job: Job) -> None:
        """Ask for a job; one that has ended shows by its answer."""
        with suppress(OSError):
            if self._setup is not None:
                self._connection.send_bytes(self._setup)
                self._setup = None
            self._connection.send_bytes(encode(job))

    def answer(self, job: Job) -> Reply:
        """Wait for the answer to a job; :class:`Failed` also where the process ends instead."""
        try:
            return decode_reply(self._connection.recv_bytes())
        except (OSError, EOFError, msgspec.MsgspecError) as error:
            return Failed(f"{self._told(job)} ({error!r})")

    def close(self) -> None:
        """End it, whatever it is doing. Safe to call twice."""
        self._process.kill()
        # A file system that hangs keeps a process from ending.
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=10)
        # Afterwards: a thread that waits for an answer sees the end of the process, and lets go.
        self._connection.close()

    def _told(self, job: Job) -> str:
        try:
            code = self._process.wait(timeout=5)
            how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        except subprocess.TimeoutExpired:
            how = "has closed its connection"
        return (
            f"trainer rank {job.rank} on {host()}: the state of step {job.step} cannot be saved: the process that writes it "
            f"({self.pid}) {how}; read this rank's log"
        )
