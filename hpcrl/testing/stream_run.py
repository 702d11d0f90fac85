"""The synthetic run of :mod:`hpcrl.testing.fault_stream`, its processes those of any run, under an ignitor's own loop.

All are on this node, and stream ``moved`` goes through two storage units all the same, as if it were between nodes.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Any

import psutil

from hpcrl.cli.evidence import Evidence, examine
from hpcrl.config.codec import recipe_to_json
from hpcrl.roles.context import Identity
from hpcrl.run.directory import RunDirectory
from hpcrl.run.records import DoneRecord
from hpcrl.run.stop import StopFlag, back_off, wait_for
from hpcrl.supervise.children import Child
from hpcrl.supervise.queue import shared_memory
from hpcrl.supervise.restarts import Restarts
from hpcrl.supervise.spare import ENTRY
from hpcrl.supervise.spares import Spares
from hpcrl.supervise.spec import QUEUE_GROUP, ProcessSpec
from hpcrl.supervise.starting import warm_for
from hpcrl.supervise.watch import watch
from hpcrl.testing.fault_stream import MOVED, PUT, ROWS, SCORED, STREAMS, TRAINED, recipe
from hpcrl.testing.faults import BACK_S, Kill
from hpcrl.testing.queue_processes import NODE, every_edge, free_ports
from hpcrl.tracking.journal import JournalReader

_END_S = 240.0
_KINDS = {"make": "producer", "score": "grader", "train_moved": "trainer", "train_local": "trainer"}


@dataclass(frozen=True)
class Outcome:
    """What came of a run.

    Attributes:
        rows: whose put was acknowledged.
        lost: of these, not trained.
        twice: rows trained again.
        rate: rows trained [1/s].
        restarts: by process.
        failure: the first of the run's processes.
    """

    rows: int
    lost: int
    twice: int
    rate: float
    restarts: dict[str, int]
    evidence: Evidence
    failure: DoneRecord | None


class StreamRun:
    """The run; a context manager.

    Args:
        path: of the run's directory.
        pause_s: of each maker between two prompts of a stream [s].
        spares: see :class:`hpcrl.recipe.Limits`.

    Attributes:
        names: of its processes.
    """

    def __init__(self, path: Path, *, pause_s: float = 0.0, spares: bool = True) -> None:
        self._recipe = recipe(pause_s, spares=spares)
        self.directory = RunDirectory.create(path, name="faults", recipe_json=recipe_to_json(self._recipe))
        self._attempt = self.directory.new_attempt()
        self._reader = JournalReader(self._attempt.journal)
        self._put: set[tuple[str, int]] = set()
        self._trained: Counter[tuple[str, int]] = Counter()
        self._times = [math.inf, 0.0]
        # What each role has done since the newest kill.
        self._fresh: dict[str, list[dict[str, Any]]] = {}
        self._children: dict[str, Child] = {}
        self._spares: Spares | None = None
        self._stop, self._stack = StopFlag(), ExitStack()
        self._failures: list[DoneRecord | None] = []
        counts = {name: group.replicas for name, group in self._recipe.groups.items()} | {QUEUE_GROUP: 3}
        self._counts = counts
        self.names = tuple(f"{group}.{rank}" for group, count in counts.items() for rank in range(count))

    def __enter__(self) -> StreamRun:
        self._stack.enter_context(shared_memory(self._attempt))
        if self._recipe.limits.spares:
            self._spares = self._stack.enter_context(closing(Spares(self._attempt.log("ignitor.0"), calm_s=0.0)))
        try:
            for name, port in zip(self.names, free_ports(len(self.names)), strict=True):
                self._children[name] = self._start(name, port)
            self._watch = Thread(target=self._watch_over, name="watch")
            self._watch.start()
            self.await_all()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        if self._children and hasattr(self, "_watch"):
            self._watch.join(_END_S)
        for child in self._children.values():
            child.kill()
        self._stack.close()

    def await_all(self) -> None:
        """Wait until each role has done something since now."""
        self._read()
        self._fresh.clear()
        for name in self.names:
            if not name.startswith(QUEUE_GROUP):
                self._await(f"rows of {name}", partial(self._fresh.get, name))

    def await_spares(self) -> None:
        """Wait until what dies is started again from spares."""
        self._await("the spares", lambda: self._spares is None or self._spares.complete or None)

    def kill(self, name: str) -> Kill:
        """Kill a process and wait until it is back in service; see :meth:`_back`."""
        self._read()
        self._fresh.clear()
        pid, killed = self._children[name].popen.pid, time.time()
        os.kill(pid, signal.SIGKILL)
        back = self._await(f"{name} to be back", lambda: self._back(name, pid, killed))
        kind = {"queue.0": "desk"}.get(name) or _KINDS.get(name.partition(".")[0], "unit")
        times = psutil.Process(self._children[name].popen.pid).cpu_times()
        return Kill(name, kind, back - killed, times.user + times.system)

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a process a signal."""
        os.kill(self._children[name].popen.pid, number)

    def finish(self) -> Outcome:
        """Let the makers end, and everybody after them."""
        (self.directory.path / "end").touch()
        self._watch.join(_END_S)
        if self._watch.is_alive():
            raise RuntimeError(f"the run has not ended after {_END_S:g} s; read {self._attempt.path / 'logs'}")
        self._read()
        began, ended = self._times
        return Outcome(
            rows=ROWS * len(self._put),
            lost=ROWS * len(self._put - self._trained.keys()),
            twice=ROWS * sum(count - 1 for count in self._trained.values()),
            rate=ROWS * self._trained.total() / (ended - began),
            restarts={name: child.incarnation for name, child in self._children.items()},
            evidence=examine(self.directory),
            failure=self._failures[0] if self._failures else None,
        )

    def _start(self, name: str, port: int) -> Child:
        group, _, rank = name.partition(".")
        identity = Identity(group, int(rank), int(rank), self._counts[group], ports=(port,))
        across = tuple(sorted(edge for edge in every_edge(self._recipe) if edge[0] == MOVED))
        spec = ProcessSpec(
            str(self.directory.path),
            self._attempt.number,
            identity,
            self._counts,
            node=NODE,
            across=across,
            # So that each unit has a maker of its own.
            unit=int(rank) % 2,
        )
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        if self._spares is not None:
            self._spares.expect(env, warm_for(self._recipe, spec))
        return Child.start(
            name,
            ENTRY,
            partial(_argument, spec),
            env=env,
            log=self._attempt.log(name),
            service=group == QUEUE_GROUP,
            restarts=Restarts(1000, burst=1000),
            spares=self._spares,
        )

    def _watch_over(self) -> None:
        roles = frozenset(name for name in self.names if not name.startswith(QUEUE_GROUP))
        drain_s = self._recipe.limits.drain_s
        failure = watch(
            list(self._children.values()),
            roles,
            self._attempt,
            stop=self._stop,
            drain_s=drain_s,
            roles=roles,
            who="ignitor.0",
            spares=self._spares,
        )
        self._failures.append(failure)

    def _back(self, name: str, pid: int, killed: float) -> float | None:
        """When it was back [Unix s], None as long as it is not.

        The desk: each maker has put rows, in a put that it began after the kill. A storage unit: its maker has put rows into
        it, likewise. A role: its new process has put, scored or trained rows.
        """
        group, _, rank = name.partition(".")
        if group != QUEUE_GROUP:
            return next((record["t"] for record in self._fresh.get(name, ()) if record["pid"] != pid), None)
        makers = ("make.0", "make.1") if rank == "0" else (f"make.{int(rank) - 1}",)
        streams = STREAMS if rank == "0" else (MOVED,)
        puts = [
            next((r["t"] for r in self._fresh.get(maker, ()) if r["began"] >= killed and r["stream"] in streams), math.inf)
            for maker in makers
        ]
        return max(puts) if math.inf not in puts else None

    def _await(self, what: str, poll: Callable[[], Any]) -> Any:
        def look() -> Any:
            if not self._watch.is_alive():
                raise RuntimeError(f"the run ended while it was waited for {what}: {self._failures}")
            self._read()
            return poll()

        return wait_for(what, look, seconds=BACK_S, pauses=back_off(0.02, 0.02))

    def _read(self) -> None:
        for writer, record in self._reader.read():
            if record["kind"] == PUT:
                self._put.add((record["stream"], record["prompt"]))
            elif record["kind"] == TRAINED:
                self._trained.update((record["stream"], prompt) for prompt in record["prompts"])
                self._times = [min(self._times[0], record["t"]), max(self._times[1], record["t"])]
            elif record["kind"] != SCORED:
                continue
            self._fresh.setdefault(writer, []).append(record)


def _argument(spec: ProcessSpec, incarnation: int) -> str:
    return replace(spec, incarnation=incarnation).to_json()
