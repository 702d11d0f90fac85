"""The processes that an ignitor started: started in groups of their own, watched, stopped by pid, never by name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hpcrl.supervise.adopted import Started
from hpcrl.supervise.linux import reap_group
from hpcrl.supervise.restarts import Restarts
from hpcrl.supervise.signals import STOP, held_back
from hpcrl.supervise.spares import Spares

# What a process that was killed has left behind may take so long to end well.
GROUP_GRACE_S = 1.0


@dataclass
class Child:
    """A started process. It leads a process group, so what it starts itself ends with it.

    Attributes:
        name: ``group.rank``.
        service: stopped once all others of the run are done.
        incarnation: how often it was started again.
        killed: by this ignitor.
    """

    name: str
    service: bool
    log: Path
    spawn: Callable[[int], Started]
    restarts: Restarts
    incarnation: int = 0
    killed: bool = False
    popen: Started = field(init=False)

    def __post_init__(self) -> None:
        self.popen = self.spawn(self.incarnation)

    @classmethod
    def start(
        cls,
        name: str,
        module: str,
        argument: Callable[[int], str],
        *,
        env: Mapping[str, str],
        log: Path,
        service: bool,
        restarts: Restarts | None = None,
        spares: Spares | None = None,
    ) -> Child:
        """Run ``python -m module argument`` with its output in a log file.

        It begins with the signals of :mod:`hpcrl.supervise.signals` held back.

        Args:
            argument: from the incarnation, 0 at first.
            restarts: how often it may be started again; None = never.
            spares: it begins as a fork of one of them if it can.
        """

        def spawn(incarnation: int) -> Started:
            if spares is not None and (forked := spares.spawn(env, module, argument(incarnation), log)) is not None:
                return forked
            with open(log, "ab") as output, held_back():
                return subprocess.Popen(
                    [sys.executable, "-m", module, argument(incarnation)],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=dict(env),
                    start_new_session=True,
                )

        return cls(name, service, log, spawn, restarts or Restarts(0))

    def start_again(self) -> None:
        """Once it has ended: run it anew, after what it left behind has ended too."""
        self._end_group()
        self.incarnation += 1
        self.popen = self.spawn(self.incarnation)

    def ended(self) -> int | None:
        """The exit code as a shell gives it (128 + signal), or None while the process runs."""
        code = self.popen.poll()
        return 128 - code if code is not None and code < 0 else code

    def ask_to_stop(self) -> None:
        """A signal to the process alone: it decides what to save and ends what it started."""
        if self.popen.poll() is None:
            self.popen.send_signal(STOP)

    def kill(self) -> None:
        """SIGKILL, and the end of the whole group. Works after the leader ended too, and then ends what it left behind."""
        self.killed = self.killed or self.popen.poll() is None
        self._end_group()

    def _end_group(self) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.wait()
        # A helper of multiprocessing removes the semaphores of the group from shared memory once all others have ended. It
        # heeds no SIGTERM.
        number, deadline = signal.SIGTERM, time.monotonic() + GROUP_GRACE_S
        try:
            while True:
                reap_group(self.popen.pid)
                os.killpg(self.popen.pid, number)
                if number == signal.SIGKILL:
                    return
                time.sleep(0.01)
                number = signal.SIGKILL if time.monotonic() > deadline else signal.SIGTERM
        except ProcessLookupError:
            return


def wait_until_ended(children: list[Child], seconds: float) -> list[Child]:
    """Wait for processes to end; those that still run after ``seconds`` are returned."""
    deadline = time.monotonic() + seconds
    for child in children:
        try:
            child.popen.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            continue
    return [child for child in children if child.popen.poll() is None]
