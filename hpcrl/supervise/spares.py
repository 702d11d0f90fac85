"""An ignitor's spares: processes that have imported everything, from which others are forked when they must start again.

Most of the time that a process takes to be back in service it imports. There is one spare for each environment that processes
of the slot have (their cores, their GPUs), since libraries look at that when they are loaded. They are made once the slot is
calm, so that the start of a run is not slowed. Whatever is wrong with one, processes are started in the ordinary way.
"""

from __future__ import annotations

import json
import logging
import select
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from hpcrl.supervise.adopted import Adopted
from hpcrl.supervise.launcher import pair
from hpcrl.supervise.linux import adopt_orphans, reap_orphans
from hpcrl.supervise.signals import held_back
from hpcrl.supervise.spare import FORK, MESSAGE_BYTES, Job, Ready, Warm

log = logging.getLogger(__name__)

ALL_READY = "whatever must start again now begins as a fork of a spare"
# So long no process of the slot was started, before a spare is made.
CALM_S = 30.0
# One that imports longer than this hangs.
_IMPORT_S = 900.0
# A fork is there within milliseconds, but on a loaded host.
_ANSWER_S = 5.0
# Spares of one kind that are lost before no further one is made.
_MOST_LOST = 3

_Kind = frozenset[tuple[str, str]]


@dataclass
class _Spare:
    """One of them, and this side of the socket to it."""

    process: subprocess.Popen[bytes]
    control: socket.socket
    began: float
    ready: bool = False

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.control.close()


class Spares:
    """The spares of a slot; one instance in a process, which takes in orphans meanwhile.

    Args:
        output: log file of the spares.
        outlast: they are of use beyond the attempt, to the next one on this host.
        calm_s: see :data:`CALM_S`.
    """

    def __init__(self, output: Path, *, outlast: bool = False, calm_s: float = CALM_S) -> None:
        self.outlast = outlast
        self._output, self._calm_s = output, calm_s
        self._kinds: dict[_Kind, Warm] = {}
        self._spares: dict[_Kind, _Spare] = {}
        self._lost: dict[_Kind, int] = {}
        self._closed = False
        self._newest_start = time.monotonic()
        adopt_orphans(True)

    def expect(self, env: Mapping[str, str], warm: Warm) -> None:
        """A process with this environment may have to start again, and then needs what ``warm`` imports."""
        kind = frozenset(env.items())
        held = self._kinds.get(kind, replace(warm, groups=(), modules=(), room=0))
        self._kinds[kind] = replace(
            held,
            groups=tuple(dict.fromkeys((*held.groups, *warm.groups))),
            modules=tuple(dict.fromkeys((*held.modules, *warm.modules))),
            room=max(held.room, warm.room),
        )

    @property
    def pids(self) -> set[int]:
        """Of the spares."""
        return {spare.process.pid for spare in self._spares.values()}

    @property
    def complete(self) -> bool:
        """Whether there is one of each kind, ready, as far as :meth:`tend` knows."""
        return all(kind in self._spares and self._spares[kind].ready for kind in self._kinds)

    def tend(self, own: Collection[int]) -> None:
        """See how spares do, and make what is missing, one after the other; to be called often.

        Args:
            own: pids of the other children that this process waits for.
        """
        reap_orphans({*own, *self.pids})
        for kind, spare in list(self._spares.items()):
            self._look(kind, spare)
        calm = time.monotonic() - self._newest_start >= self._calm_s
        if calm and not self._closed and all(spare.ready for spare in self._spares.values()):
            missing = next((kind for kind in self._kinds if kind not in self._spares), None)
            if missing is not None:
                self._spares[missing] = self._make(missing)

    def spawn(self, env: Mapping[str, str], module: str, argument: str, output: Path) -> Adopted | None:
        """``python -m module argument`` in this environment, as the leader of a session, with its output in a log file.

        Its signals are held back, as in :func:`hpcrl.supervise.signals.held_back`. None if there is no spare for it.
        """
        self._newest_start = time.monotonic()
        kind = frozenset(env.items())
        spare = self._spares.get(kind)
        if spare is None or not spare.ready:
            return None
        ours, theirs = pair()
        with ours:
            ours.settimeout(_ANSWER_S)
            try:
                with theirs, open(output, "ab") as file:
                    socket.send_fds(spare.control, [FORK], [theirs.fileno(), file.fileno()])
                child = Adopted(int(json.loads(ours.recv(MESSAGE_BYTES))))
                ours.send(json.dumps(asdict(Job(module, argument))).encode())
            except (OSError, ValueError) as error:
                log.warning("spare, pid %d: nothing could be forked from it (%r); it is given up", spare.process.pid, error)
                self._lose(kind)
                return None
        return child

    def close(self) -> None:
        """End all spares; what was forked from them goes on. Safe to call twice."""
        self._closed = True
        for kind in list(self._spares):
            self._spares.pop(kind).end()
        adopt_orphans(False)

    def _make(self, kind: _Kind) -> _Spare:
        ours, theirs = pair()
        with theirs, open(self._output, "ab") as output, held_back():
            process = subprocess.Popen(
                [sys.executable, "-m", "hpcrl.supervise.spare", str(theirs.fileno()), self._kinds[kind].to_json()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(kind),
                pass_fds=(theirs.fileno(),),
            )
        log.info("spare, pid %d, imports what %s need", process.pid, ", ".join(self._kinds[kind].groups) or "processes")
        return _Spare(process, ours, time.monotonic())

    def _look(self, kind: _Kind, spare: _Spare) -> None:
        """Hear whether it is ready, and whether it lives."""
        pid = spare.process.pid
        if (code := spare.process.poll()) is not None:
            log.warning("spare, pid %d, ended with code %d; read %s", pid, code, self._output)
            self._lose(kind)
        elif not spare.ready and select.select([spare.control], [], [], 0)[0]:
            said = spare.control.recv(MESSAGE_BYTES)
            ready = Ready(**json.loads(said)) if said else Ready("it has closed its socket", 0.0, 0.0)
            if ready.unfit:
                log.warning("spare, pid %d, is of no use, and no other is made: %s", pid, ready.unfit)
                self._lose(kind, _MOST_LOST)
                return
            spare.ready = True
            log.info("spare, pid %d, is ready: %.1f s of CPU, %.0f MiB", pid, ready.cpu_s, ready.memory_mib)
            if self.complete:
                log.info(ALL_READY)
        elif not spare.ready and time.monotonic() - spare.began > _IMPORT_S:
            log.warning("spare, pid %d, has not imported everything within %g s; it is given up", pid, _IMPORT_S)
            self._lose(kind)

    def _lose(self, kind: _Kind, count: int = 1) -> None:
        self._spares.pop(kind).end()
        self._lost[kind] = self._lost.get(kind, 0) + count
        if self._lost[kind] >= _MOST_LOST:
            del self._kinds[kind]
