"""Planes of both kinds. The real queue runs as three processes, once for each test module."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hpcrl.dataplane.connect import connect
from hpcrl.dataplane.interface import DataPlane
from hpcrl.dataplane.memory import MemoryHub
from hpcrl.recipe import Column, FeedbackStream, Limits, Reads, Recipe, Role, RoleGroup, Schedule, Stream, Writes

KEY = "0123456789abcdef" * 3
ROOT = Path(__file__).parents[2]
COUNT = itertools.count()

SERVE = """
import json, pathlib, signal, sys
from hpcrl.dataplane.transferqueue import server
from hpcrl.run.stop import StopFlag
stop = StopFlag()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
kind, path, key, *ports = sys.argv[1:]
def publish(endpoint):
    beside = pathlib.Path(path + ".new")
    beside.write_text(json.dumps(endpoint))
    beside.rename(path)
common = dict(address="127.0.0.1", ports=[int(p) for p in ports], key=key, publish=publish, stop=stop)
if kind == "controller":
    server.serve_controller(**common)
else:
    server.serve_storage(capacity_blocks=10_000, **common)
"""


@dataclass(frozen=True, kw_only=True)
class Part(Role):
    """A role that is only its contract."""

    read: tuple[Reads, ...] = ()
    write: tuple[Writes, ...] = ()
    announced: tuple[str, ...] = ()

    def reads(self) -> tuple[Reads, ...]:
        return self.read

    def writes(self) -> tuple[Writes, ...]:
        return self.write

    def announces(self) -> tuple[str, ...]:
        return self.announced


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@dataclass
class Servers:
    """Processes of a real queue."""

    folder: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    ports: dict[str, list[int]] = field(default_factory=dict)

    def start(self, *names: str) -> dict[str, Any]:
        for name in names:
            kind = "controller" if name == "controller" else "storage"
            self.ports[name] = free_ports(2 if kind == "controller" else 1)
            command = [sys.executable, "-c", SERVE, kind, str(self.folder / name), KEY, *map(str, self.ports[name])]
            with open(self.folder / f"{name}.log", "wb") as log:
                environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
                self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        found = {name: self._endpoint(name) for name in names}
        return {"controller": found["controller"], "storage": [found[name] for name in names if name != "controller"]}

    def _endpoint(self, name: str) -> Any:
        path = self.folder / name
        while not path.exists():
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self.processes[name].wait(0.05)
                raise AssertionError(f"{name} ended with {code}: {(self.folder / f'{name}.log').read_text()}")
        return json.loads(path.read_text())

    def kill(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait()

    def stop(self) -> dict[str, int]:
        for process in self.processes.values():
            process.terminate()
        codes = {}
        for name, process in self.processes.items():
            try:
                codes[name] = process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                codes[name] = process.wait()
        return codes


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    """Servers of this test alone, not yet started."""
    held = Servers(tmp_path)
    yield held
    held.stop()


@pytest.fixture(scope="module")
def real_queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Where a controller and two storage units listen."""
    held = Servers(tmp_path_factory.mktemp("queue"))
    try:
        yield held.start("controller", "storage0", "storage1")
    finally:
        codes = held.stop()
    assert set(codes.values()) == {0}, {name: (held.folder / f"{name}.log").read_text() for name in codes}


class Bench:
    """A recipe and its planes, on one kind of queue; streams have names of their own in every test.

    Attributes:
        name: the row stream. ``make`` creates its rows (ids, tokens, text), ``score`` and ``judge`` fill columns, ``train``
            is the final reader, ``watch`` reads too.
        gate: the feedback stream, announced by ``train`` and ``score``.
    """

    def __init__(self, queue: MemoryHub | dict[str, Any]) -> None:
        self.queue = queue
        number = next(COUNT)
        self.name, self.gate = f"samples{number}", f"gate{number}"
        self.processes = {"make": 2, "score": 2, "judge": 1, "train": 2, "watch": 1}
        self.planes: list[DataPlane] = []
        made = ("index", "tokens", "logprobs", "text", "good")
        everything = (*made, "reward", "note")

        def group(**contract: Any) -> RoleGroup:
            return RoleGroup(role=Part(**contract))

        self.recipe = Recipe(
            name="test",
            groups={
                "make": group(write=(Writes(stream=self.name, columns=made, creates=True),)),
                "score": group(
                    read=(Reads(stream=self.name, columns=made),),
                    write=(Writes(stream=self.name, columns=("reward",)),),
                    announced=(self.gate,),
                ),
                "judge": group(
                    read=(Reads(stream=self.name, columns=made),), write=(Writes(stream=self.name, columns=("note",)),)
                ),
                "train": group(read=(Reads(stream=self.name, columns=everything, final=True),), announced=(self.gate,)),
                "watch": group(read=(Reads(stream=self.name, columns=made),)),
            },
            streams=(
                Stream(
                    name=self.name,
                    columns=(
                        Column(name="index", dtype="int64"),
                        Column(name="tokens", dtype="int32", ragged=True),
                        Column(name="logprobs", dtype="float32", ragged=True),
                        Column(name="text", dtype="str"),
                        Column(name="good", dtype="bool"),
                        Column(name="reward", dtype="float32"),
                        Column(name="note", dtype="str"),
                    ),
                    block_rows=4,
                    capacity_rows=1000,
                ),
            ),
            schedule=Schedule(steps=1, prompts_per_step=1, samples_per_prompt=1),
            feedback=(FeedbackStream(name=self.gate),),
            limits=Limits(call_s=20.0, wait_s=20.0),
        )

    def plane(self, group: str, rank: int = 0, **options: Any) -> DataPlane:
        plane = connect(self.queue, self.recipe, group=group, rank=rank, processes=self.processes, key=KEY, **options)
        self.planes.append(plane)
        return plane

    def limits(self, **limits: float) -> None:
        self.recipe = dataclasses.replace(self.recipe, limits=dataclasses.replace(self.recipe.limits, **limits))

    def stream(self, **fields: Any) -> None:
        self.recipe = dataclasses.replace(self.recipe, streams=(dataclasses.replace(self.recipe.streams[0], **fields),))


@pytest.fixture(params=["memory", pytest.param("transferqueue", marks=pytest.mark.slow)])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """A fresh recipe on a hub and on the module's real queue."""
    made = Bench(MemoryHub() if request.param == "memory" else request.getfixturevalue("real_queue"))
    yield made
    for plane in made.planes:
        plane.close()


@pytest.fixture
def make_bench() -> Callable[[MemoryHub | dict[str, Any]], Bench]:
    """The recipe for a queue of the test's own."""
    return Bench
