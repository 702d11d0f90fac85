"""A run on this machine: one ignitor for each slot, as srun would start them, and their end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

import psutil

from hpcrl.run.directory import Attempt

# An ignitor drains its roles within their deadline, then stops services; this much more for itself.
IGNITOR_GRACE_S = 45.0
# A killed process is gone once the kernel has freed its memory.
KILLED_S = 10.0


class LocalRun:
    """The ignitors of an attempt on this machine.

    They run in sessions of their own, so that Ctrl-C on the terminal reaches the caller alone.
    """

    def __init__(self, attempt: Attempt, slots: int, *, drain_s: float) -> None:
        self._attempt = attempt
        # From being asked to drain until everything has ended by itself.
        self.finish_s = drain_s + IGNITOR_GRACE_S
        self._ignitors = [self._start(slot, slots) for slot in range(slots)]

    def _start(self, slot: int, slots: int) -> subprocess.Popen[bytes]:
        arguments: Sequence[str] = (str(self._attempt.run.path), str(self._attempt.number), str(slot), str(slots))
        with open(self._attempt.log(f"ignitor.{slot}"), "ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "hpcrl.supervise.ignitor", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def ended(self) -> bool:
        """Whether every ignitor has ended."""
        return all(ignitor.poll() is not None for ignitor in self._ignitors)

    def wait(self, seconds: float) -> bool:
        """Wait for the end at most so long; returns whether it came."""
        deadline = time.monotonic() + seconds
        for ignitor in self._ignitors:
            with contextlib.suppress(subprocess.TimeoutExpired):
                ignitor.wait(max(0.0, deadline - time.monotonic()))
        return self.ended()

    def drain(self) -> None:
        """Ask everything to save and end; it should have within ``finish_s`` seconds."""
        for ignitor in self._ignitors:
            if ignitor.poll() is None:
                ignitor.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End everything now, role processes too: what the kernel tells them of their ignitor's end only asks them to save."""
        for ignitor in self._ignitors:
            if ignitor.poll() is None:
                family = psutil.Process(ignitor.pid).children(recursive=True)
                os.killpg(ignitor.pid, signal.SIGKILL)
                ignitor.wait()
                for process in family:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.kill()
                psutil.wait_procs(family, timeout=KILLED_S)

    def code(self) -> int:
        """Exit code of the run once it has ended: the first that is not 0."""
        codes = [ignitor.poll() for ignitor in self._ignitors]
        bad = [code for code in codes if code]
        return (bad[0] if bad[0] > 0 else 128 - bad[0]) if bad else 0
