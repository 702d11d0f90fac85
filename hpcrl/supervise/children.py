"""The processes that an ignitor started: started in groups of their own, watched, stopped by pid, never by name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcrl.supervise.signals import STOP, held_back


@dataclass
class Child:
    """A started process. It leads a process group, so what it starts itself ends with it.

    Attributes:
        name: ``group.rank``.
        service: stopped once all others of the run are done.
    """

    name: str
    service: bool
    log: Path
    popen: subprocess.Popen[bytes]

    @classmethod
    def start(cls, name: str, module: str, argument: str, *, env: Mapping[str, str], log: Path, service: bool) -> Child:
        """Run ``python -m module argument`` with its output in a log file.

        It begins with the signals of :mod:`hpcrl.supervise.signals` held back.
        """
        with open(log, "ab") as output, held_back():
            popen = subprocess.Popen(
                [sys.executable, "-m", module, argument],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(env),
                start_new_session=True,
            )
        return cls(name, service, log, popen)

    def ended(self) -> int | None:
        """The exit code as a shell gives it (128 + signal), or None while the process runs."""
        code = self.popen.poll()
        return 128 - code if code is not None and code < 0 else code

    def ask_to_stop(self) -> None:
        """A signal to the process alone: it decides what to save and ends what it started."""
        if self.popen.poll() is None:
            self.popen.send_signal(STOP)

    def kill(self) -> None:
        """SIGKILL to the whole group. Works after the leader ended too, and then ends what it left behind."""
        try:
            os.killpg(self.popen.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self.popen.wait()


def tail(log: Path, lines: int = 20) -> str:
    """The last lines of a log file, for an error message; reads at most its last 64 KiB."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, log.stat().st_size - 65_536))
            text = file.read().decode(errors="replace")
    except OSError as error:
        return f"(log cannot be read: {error.strerror})"
    return "\n".join(text.splitlines()[-lines:]) or "(the log is empty)"


def wait_until_ended(children: list[Child], seconds: float) -> list[Child]:
    """Wait for processes to end; those that still run after ``seconds`` are returned."""
    deadline = time.monotonic() + seconds
    for child in children:
        try:
            child.popen.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            continue
    return [child for child in children if child.popen.poll() is None]
