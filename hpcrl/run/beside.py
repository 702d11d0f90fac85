"""A process that does work for the one that started it, and that nobody else ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Pipe

# Slurm, a terminal and the ignitor signal whole groups; only its starter ends the process.
_NOT_HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_END_S = 10.0


class Beside:
    """``python -m MODULE DESCRIPTOR …``: it speaks through the inherited :class:`multiprocessing.connection.Connection` of that
    descriptor, and should end when that does. It sees no GPU, on which a mere context would take memory.

    Args:
        inherited: further descriptors for it.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, module: str, inherited: Sequence[int] = ()) -> None:
        self._connection, its = Pipe()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _NOT_HEARD)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *map(str, (its.fileno(), *inherited))],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
                pass_fds=(its.fileno(), *inherited),
            )
        except OSError:
            self._connection.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            its.close()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def send(self, message: bytes) -> None:
        """Say something; a process that has ended shows by its answer."""
        with suppress(OSError):
            self._connection.send_bytes(message)

    def receive(self) -> bytes | None:
        """Wait for what it says; None where it ends instead."""
        try:
            return self._connection.recv_bytes()
        except (OSError, EOFError):
            return None

    def how_it_ended(self) -> str:
        """In words."""
        try:
            code = self._process.wait(timeout=_END_S)
        except subprocess.TimeoutExpired:
            return "has closed its connection"
        return f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"

    def close(self) -> None:
        """End it, whatever it is doing. Safe to call twice."""
        self._process.kill()
        # A file system that hangs keeps a process from ending.
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_END_S)
        # Afterwards: a thread that waits for an answer sees the end of the process, and lets go.
        self._connection.close()
