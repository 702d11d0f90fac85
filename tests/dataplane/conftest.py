"""Planes of three kinds: in memory, on one node (a desk and shared memory), and across nodes (storage units too).

Each test has a desk of its own, a process; the storage units are shared by the session.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcrl.dataplane.connect import QueueAddress, connect
from hpcrl.dataplane.interface import DataPlane
from hpcrl.dataplane.memory import MemoryHub
from hpcrl.dataplane.shm.folders import usage
from hpcrl.recipe import Column, FeedbackStream, Limits, Reads, Recipe, RoleGroup, Schedule, Stream, Writes
from hpcrl.testing.queue_processes import Contract, QueueProcesses, every_edge

KEY = "0123456789abcdef" * 3
COUNT = itertools.count()


@pytest.fixture
def files_up_to() -> Callable[[int], contextlib.AbstractContextManager[None]]:
    """Within it no file of this process may grow beyond so many bytes: to be left before pytest writes what came of a test,
    since that may go to a file too."""

    @contextlib.contextmanager
    def limited(size: int) -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limited


@pytest.fixture(scope="session")
def units(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QueueProcesses]:
    """Two storage units."""
    with QueueProcesses(tmp_path_factory.mktemp("units"), key=KEY) as held:
        held.start_units(2)
        yield held


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[QueueProcesses]:
    """Processes of this test alone, not yet started."""
    with QueueProcesses(tmp_path / "history", key=KEY) as held:
        yield held


class Bench:
    """A recipe and its planes, on one kind of queue, which begins with the first plane.

    Attributes:
        kind: ``memory``, ``node`` or ``across``.
        name: the row stream. ``make`` creates its rows (ids, tokens, text), ``score`` and ``judge`` fill columns, ``train``
            is the final reader, ``watch`` reads too.
        gate: the feedback stream, announced by ``train`` and ``score``.
    """

    def __init__(self, kind: str, queue: QueueProcesses | None = None, units: QueueProcesses | None = None) -> None:
        self.kind, self.processes_of_queue, self._units = kind, queue, units
        self.hub = MemoryHub()
        number = next(COUNT)
        self.name, self.gate = f"samples{number}", f"gate{number}"
        self.processes = {"make": 2, "score": 2, "judge": 1, "train": 2, "watch": 2}
        self.planes: list[DataPlane] = []
        made = ("index", "tokens", "logprobs", "text", "good")
        everything = (*made, "reward", "note")

        def group(**contract: Any) -> RoleGroup:
            return RoleGroup(role=Contract(**contract))

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
            limits=Limits(call_s=30.0, wait_s=30.0),
        )

    def where(self) -> MemoryHub | QueueAddress:
        """What planes connect to; the desk begins with the first call."""
        if self.processes_of_queue is None:
            return self.hub
        if "queue.0" not in self.processes_of_queue.endpoints:
            self.processes_of_queue.start_desk(self.recipe, self.processes)
        # Nothing is so small that it would travel within the operations.
        address = self.processes_of_queue.address(inline_bytes=0)
        if self._units is None:
            return address
        across, unit = every_edge(self.recipe), len(self.planes) % 2
        return dataclasses.replace(address, storage=self._units.storage, across=across, unit=unit)

    def plane(self, group: str, rank: int = 0, **options: Any) -> DataPlane:
        plane = connect(self.where(), self.recipe, group=group, rank=rank, processes=self.processes, key=KEY, **options)
        self.planes.append(plane)
        return plane

    def limits(self, **limits: float) -> None:
        self.recipe = dataclasses.replace(self.recipe, limits=dataclasses.replace(self.recipe.limits, **limits))

    def stream(self, **fields: Any) -> None:
        self.recipe = dataclasses.replace(self.recipe, streams=(dataclasses.replace(self.recipe.streams[0], **fields),))

    def bytes_left(self) -> int:
        """After the planes are closed and what they owe each other is done: bytes of rows that lie anywhere."""
        for plane in self.planes:
            # Whoever makes a change hears of its segments.
            if plane._member.group in ("make", "score"):
                plane.close_stream(self.name)
            plane.close()
        if self.processes_of_queue is None:
            return sum(data.nbytes for data in self.hub._bytes.values())
        return sum(size for who, size in usage(self.processes_of_queue.folder).by_writer.items() if not who.endswith(".wal"))


@pytest.fixture(params=["memory", pytest.param("node", marks=pytest.mark.slow), pytest.param("across", marks=pytest.mark.slow)])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """A fresh recipe on a queue of each kind."""
    kind = request.param
    made = Bench(
        kind,
        None if kind == "memory" else request.getfixturevalue("queue"),
        request.getfixturevalue("units") if kind == "across" else None,
    )
    yield made
    for plane in made.planes:
        plane.close()


@pytest.fixture
def make_bench(queue: QueueProcesses) -> Iterator[Callable[..., Bench]]:
    """The recipe for a queue of the test's own; planes are closed before the queue ends."""
    made: list[Bench] = []

    def make(*arguments: Any) -> Bench:
        made.append(Bench(*arguments))
        return made[-1]

    yield make
    for bench in made:
        for plane in bench.planes:
            plane.close()
