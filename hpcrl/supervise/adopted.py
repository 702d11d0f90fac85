"""Processes that an ignitor watches: those that it started itself, and those that became its own."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from typing import Protocol


class Started(Protocol):
    """What is needed of :class:`subprocess.Popen`."""

    @property
    def pid(self) -> int:
        """Of the process."""

    def poll(self) -> int | None:
        """The exit code, minus the signal that killed it, or None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """:meth:`poll` that waits; ``subprocess.TimeoutExpired`` if it runs on."""

    def send_signal(self, sig: int) -> None:
        """Unless it has ended."""

    def kill(self) -> None:
        """SIGKILL."""


class Adopted:
    """A child of this process that another one has started.

    Raises:
        ChildProcessError: it is no child of this process.
    """

    def __init__(self, pid: int) -> None:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """See :class:`Started`."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """See :class:`Started`."""
        until = None if timeout is None else time.monotonic() + timeout
        pause = 0.0005
        while (code := self.poll()) is None:
            left = pause if until is None else until - time.monotonic()
            if left <= 0:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            time.sleep(min(pause, left))
            pause = min(2 * pause, 0.05)
        return code

    def send_signal(self, sig: int) -> None:
        """See :class:`Started`."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, sig)

    def kill(self) -> None:
        """See :class:`Started`."""
        self.send_signal(signal.SIGKILL)
