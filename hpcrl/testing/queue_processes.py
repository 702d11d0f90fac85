"""The data plane's own processes without a run around them, for tests and benchmarks: started, killed, started again."""

from __future__ import annotations

import multiprocessing
import secrets
import signal
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from hpcrl.dataplane.connect import QueueAddress
from hpcrl.dataplane.desk.process import DESK, Durability
from hpcrl.dataplane.room import SHARED_MEMORY
from hpcrl.dataplane.shm.folders import Claim, attempt_folder, remove_attempt
from hpcrl.plan.edges import Edge, claims
from hpcrl.recipe import Reads, Recipe, Role, Writes
from hpcrl.run.stop import StopFlag

NODE = "here"
_START_S, _END_S = 120.0, 30.0


@dataclass(frozen=True, kw_only=True)
class Contract(Role):
    """A role that is only its contract."""

    read: tuple[Reads, ...] = ()
    write: tuple[Writes, ...] = ()
    announced: tuple[str, ...] = ()

    def reads(self) -> tuple[Reads, ...]:
        """See :meth:`Role.reads`."""
        return self.read

    def writes(self) -> tuple[Writes, ...]:
        """See :meth:`Role.writes`."""
        return self.write

    def announces(self) -> tuple[str, ...]:
        """See :meth:`Role.announces`."""
        return self.announced


def every_edge(recipe: Recipe) -> frozenset[Edge]:
    """Every column of every stream, as if all travelled between nodes."""
    roles = [group.role for group in recipe.groups.values()]
    return frozenset((claim.stream, column) for role in roles for claim in claims(role) for column in claim.columns)


class QueueProcesses:
    """A desk and storage units on loopback, with a folder of their own in shared memory.

    Use it as a context manager: at its end the processes are ended and the folder is gone.

    Args:
        history: where the desk writes the run's history.
        key: the run's secret.
        root: for the folder.
        durability: of the desk; see :func:`hpcrl.dataplane.desk.process.serve_desk`.
    """

    def __init__(self, history: Path, *, key: str, root: Path = SHARED_MEMORY, durability: Durability | None = None) -> None:
        self.history, self.key, self.durability = history, key, durability
        self.folder = attempt_folder(f"test-{secrets.token_hex(6)}", 1, root)
        self.processes: dict[str, BaseProcess] = {}
        self.endpoints: dict[str, Any] = {}
        self._ports: dict[str, int] = {}
        self._lives: dict[str, int] = {}
        self._claim: Claim | None = None

    def __enter__(self) -> QueueProcesses:
        # As a node's ignitor does: while all of them are dead, another run's sweep must leave the folder alone.
        self._claim = Claim(self.folder)
        return self

    def __exit__(self, *_: object) -> None:
        codes = self.stop()
        if self._claim is not None:
            self._claim.release()
        gone = remove_attempt(self.folder)
        if bad := {name: code for name, code in codes.items() if code not in (0, -signal.SIGKILL)}:
            raise RuntimeError(f"processes of the queue failed: {bad}; their errors are above")
        if not gone:
            raise RuntimeError(f"{self.folder} is still claimed by a process")

    def start_desk(self, recipe: Recipe, processes: Mapping[str, int]) -> None:
        """Start it, or start it again where it was; returns once it listens."""
        self._await("queue.0", self._spawn("queue.0", _context(), _be_desk, (recipe, dict(processes), self.durability)))

    def start_units(self, count: int = 2) -> None:
        """Start the storage units ``queue.1`` and on, together."""
        names = [f"queue.{rank + 1}" for rank in range(count)]
        pipes = {name: self._spawn_unit(name) for name in names}
        for name, pipe in pipes.items():
            self._await(name, pipe)

    def start_unit(self, name: str) -> None:
        """Start one again where it was."""
        self._await(name, self._spawn_unit(name))

    def address(self, *, across: frozenset[Edge] = frozenset(), unit: int = 0, **options: Any) -> QueueAddress:
        """For a process of this node."""
        desk, storage = self.endpoints["queue.0"], self.storage
        return QueueAddress(desk=desk, storage=storage, folder=self.folder, node=NODE, across=across, unit=unit, **options)

    @property
    def storage(self) -> list[Any]:
        """Endpoints of the units, by rank."""
        return [self.endpoints[name] for name in sorted(self.endpoints) if name != "queue.0"]

    def kill(self, name: str) -> None:
        """End it as a node's memory killer would."""
        self.processes[name].kill()
        self.processes[name].join(_END_S)

    def stop(self) -> dict[str, int | None]:
        """End all of them; their exit codes."""
        desk = [process for name, process in self.processes.items() if name == DESK]
        # A desk's last snapshot needs what the units hold.
        for together in (desk, [process for process in self.processes.values() if process not in desk]):
            for process in together:
                process.terminate()
            for process in together:
                process.join(_END_S)
                if process.exitcode is None:
                    process.kill()
                    process.join()
        return {name: process.exitcode for name, process in self.processes.items()}

    def _spawn_unit(self, name: str) -> Connection:
        return self._spawn(name, _context(), _be_unit, (name, self._lives.get(name, 0)))

    def _spawn(self, name: str, context: ForkServerContext, target: Any, arguments: tuple[Any, ...]) -> Connection:
        if name not in self._ports:
            self._ports[name] = free_ports(1)[0]
        self._lives[name] = self._lives.get(name, 0) + 1
        ours, theirs = context.Pipe(duplex=False)
        common = (self._ports[name], self.key, self.folder, self.history, theirs)
        process = context.Process(target=target, args=(*arguments, *common), name=name)
        process.start()
        theirs.close()
        self.processes[name] = process
        return ours

    def _await(self, name: str, pipe: Connection) -> None:
        try:
            if not pipe.poll(_START_S):
                raise RuntimeError(f"{name} did not listen within {_START_S:g} s")
            self.endpoints[name] = pipe.recv()
        except EOFError:
            self.processes[name].join(_END_S)
            raise RuntimeError(f"{name} ended with {self.processes[name].exitcode} before it listened") from None
        finally:
            pipe.close()


def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["hpcrl.testing.preload"])
    return context


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody uses now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _be_desk(
    recipe: Recipe,
    processes: dict[str, int],
    durability: Durability | None,
    port: int,
    key: str,
    folder: Path,
    history: Path,
    pipe: Connection,
) -> None:
    from hpcrl.dataplane.desk.process import serve_desk

    serve_desk(
        recipe,
        processes,
        address="127.0.0.1",
        port=port,
        key=key,
        folder=folder,
        history=history,
        publish=pipe.send,
        stop=_stop_on_signal(),
        durability=durability,
    )


def _be_unit(name: str, life: int, port: int, key: str, folder: Path, history: Path, pipe: Connection) -> None:
    from hpcrl.dataplane.transferqueue.storage import serve_storage

    serve_storage(
        who=name,
        life=life,
        node=NODE,
        address="127.0.0.1",
        port=port,
        key=key,
        folder=folder,
        publish=pipe.send,
        stop=_stop_on_signal(),
    )


def _stop_on_signal() -> StopFlag:
    stop = StopFlag()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return stop
