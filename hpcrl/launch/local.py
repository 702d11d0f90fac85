"""A run on this machine: one ignitor for each slot, as srun would start them, and their end.

An ignitor lives on from an attempt to the next where it can: its spares are then there already.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from hpcrl.run.directory import Attempt
from hpcrl.supervise import launcher

# An ignitor drains its roles within their deadline, then stops services; this much more for itself.
IGNITOR_GRACE_S = 45.0
# A killed process is gone once the kernel has freed its memory.
KILLED_S = 10.0


@dataclass
class _Ignitor:
    """One of them, with the socket to it.

    Attributes:
        code: how its attempt ended; None while it has not.
    """

    process: subprocess.Popen[bytes]
    control: socket.socket
    code: int | None = None

    def look(self) -> None:
        """See whether its attempt has ended."""
        if self.code is None and select.select([self.control], [], [], 0)[0]:
            # One that has closed the socket ends.
            said = launcher.hear_number(self.control)
            self.code = said if said is not None else self.process.wait()

    def begin(self, attempt: Attempt) -> bool:
        """Whether it goes on with another attempt."""
        if self.process.poll() is not None or not launcher.say_number(self.control, attempt.number):
            return False
        self.code = None
        return True

    def end(self) -> None:
        """End it, and all that it has started; at once, if its attempt has not ended."""
        self.control.close()
        if self.code is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(KILLED_S)
        if self.process.poll() is None:
            family = psutil.Process(self.process.pid).children(recursive=True)
            os.killpg(self.process.pid, signal.SIGKILL)
            for process in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(family, timeout=KILLED_S)
        code = self.process.wait()
        self.code = code if self.code is None else self.code


class LocalRun:
    """The ignitors of a run on this machine.

    They run in sessions of their own, so that Ctrl-C on the terminal reaches the caller alone.

    Attributes:
        finish_s: from being asked to drain until everything has ended by itself [s].
    """

    def __init__(self, slots: int, *, drain_s: float) -> None:
        self._slots = slots
        self.finish_s = drain_s + IGNITOR_GRACE_S
        self._ignitors: dict[int, _Ignitor] = {}

    def begin(self, attempt: Attempt) -> None:
        """Begin an attempt; the one before has ended."""
        for slot in range(self._slots):
            held = self._ignitors.get(slot)
            if held is None or not held.begin(attempt):
                if held is not None:
                    held.end()
                self._ignitors[slot] = self._start(attempt, slot)

    def _start(self, attempt: Attempt, slot: int) -> _Ignitor:
        arguments: Sequence[str] = (str(attempt.run.path), str(attempt.number), str(slot), str(self._slots))
        ours, its = launcher.pair()
        with its, open(attempt.log(f"ignitor.{slot}"), "ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "hpcrl.supervise.ignitor", *arguments],
                stdin=its.fileno(),
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return _Ignitor(process, ours)

    def ended(self) -> bool:
        """Whether the attempt has ended for every ignitor."""
        for ignitor in self._ignitors.values():
            ignitor.look()
        return all(ignitor.code is not None for ignitor in self._ignitors.values())

    def wait(self, seconds: float) -> bool:
        """Wait for the attempt's end at most so long; returns whether it came."""
        deadline = time.monotonic() + seconds
        while not self.ended() and (left := deadline - time.monotonic()) > 0:
            select.select([one.control for one in self._ignitors.values() if one.code is None], [], [], left)
        return self.ended()

    def drain(self) -> None:
        """Ask everything to save and end; it should have within ``finish_s`` seconds."""
        for ignitor in self._ignitors.values():
            if ignitor.process.poll() is None:
                ignitor.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End everything now, role processes too: what the kernel tells them of their ignitor's end only asks them to save."""
        for ignitor in self._ignitors.values():
            ignitor.end()

    def code(self) -> int:
        """Exit code of the attempt once it has ended: the first that is not 0."""
        bad = [ignitor.code for ignitor in self._ignitors.values() if ignitor.code]
        return (bad[0] if bad[0] > 0 else 128 - bad[0]) if bad else 0
