"""How a rank of the trainer sends versions: who gets them, and where it listens."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from hpcrl.checkpoint.publish.layout import TensorSpec
from hpcrl.checkpoint.publish.versions import Version
from hpcrl.dataplane.shm.folders import shared_folder
from hpcrl.recipe import Limits, Recipe, Resources, Role, RoleGroup, Schedule
from hpcrl.roles.context import Identity, RoleContext
from hpcrl.roles.feedback import NOT_SERVING, SERVED
from hpcrl.roles.sending import SENT, SERVER_KEY, Sending, wire_key
from hpcrl.run.directory import RunDirectory
from hpcrl.run.rendezvous import Rendezvous
from hpcrl.tracking.journal import Journal

SPECS = [TensorSpec("a", "bfloat16", (3, 5)), TensorSpec("b", "bfloat16", (7,))]


@dataclass
class Item:
    value: dict[str, Any]


class FakeQueue:
    """What engines say that they serve."""

    def __init__(self) -> None:
        self.served: dict[str, int] = {}

    def newest(self, stream: str) -> dict[str, Item]:
        assert stream == SERVED
        return {name: Item({"version": version}) for name, version in self.served.items()}


def version(number: int) -> Version:
    return Version(version=number, hash="h", dtype="bfloat16", attempt=1, previous=None, previous_hash="", files=[], tensors={})


class Place:
    """A trainer's context on one rank."""

    def __init__(self, folder: Path, model: Path, port: int, ways: dict[str, str]) -> None:
        self.run = RunDirectory.create(folder / "run", name="t", recipe_json="{}")
        attempt = self.run.new_attempt()
        self.queue = FakeQueue()
        recipe = Recipe(
            name="t",
            groups={name: RoleGroup(role=Role(), resources=Resources()) for name in ("trainer", "inference")},
            streams=(),
            schedule=Schedule(steps=1, prompts_per_step=1, samples_per_prompt=1),
            limits=Limits(call_s=0.5),
        )
        self.context = RoleContext(
            recipe=recipe,
            identity=Identity("trainer", 0, 0, 1, ports=(port, port + 1)),
            attempt=attempt,
            queue=self.queue,  # type: ignore[arg-type]
            rendezvous=Rendezvous(attempt.path / "rendezvous", self.run.run_id),
            journal=Journal(attempt.journal / "trainer.0.jsonl"),
            key="k",
            ways=ways,  # type: ignore[arg-type]
        )
        self.sending = Sending(self.context, model, SPECS, lambda said: [said])


@pytest.fixture
def place(tmp_path: Path, tiny_model: Path) -> Iterator[Any]:
    made: list[Place] = []

    def make(**ways: str) -> Place:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        made.append(Place(tmp_path, tiny_model, port, {name.replace("_", "."): way for name, way in ways.items()}))
        return made[-1]

    yield make
    for one in made:
        one.sending.close()


def listening() -> set[int]:
    return {c.laddr.port for c in psutil.Process().net_connections("tcp") if c.status == psutil.CONN_LISTEN}


def test_with_the_disk_alone_nothing_is_opened(place: Any) -> None:
    before = listening()
    here = place(inference_0="disk")
    assert listening() == before
    assert here.sending.announcement(version(1)) == {"trainer": "trainer", "ranks": 1}
    here.sending.send(version(1), {})
    here.sending.settle()
    assert not shared_folder(here.context.attempt).exists()


def test_files_are_served_at_the_planned_port_until_the_end(place: Any) -> None:
    here = place(inference_0="tcp")
    port = here.context.identity.ports[1]
    assert here.context.rendezvous.peek(SERVER_KEY) == {"address": "127.0.0.1", "port": port}
    assert port in listening()
    here.sending.close()
    assert port not in listening()


def test_memory_is_claimed_until_the_end(place: Any) -> None:
    import numpy as np

    here = place(inference_0="memory")
    folder = shared_folder(here.context.attempt)
    held = {spec.name: (spec, np.zeros(spec.nbytes // 2, np.uint16)) for spec in SPECS}
    here.sending.send(version(1), held)
    here.sending.settle()
    assert (folder / SENT / "0" / "model.safetensors").exists()
    here.sending.close()
    assert not folder.exists()


def test_only_engines_that_keep_up_are_broadcast_to(place: Any) -> None:
    here = place(inference_0="distributed", inference_1="distributed", inference_2="disk")
    assert here.context.rendezvous.peek(wire_key("trainer", 0))["names"] == ["a", "b"]

    def members(number: int) -> dict[str, Any]:
        return here.sending.announcement(version(number))["members"]

    assert members(0) == {"generation": 0, "engines": ()}
    here.queue.served = {"inference.0": 0, "inference.1": 0, "inference.2": 0}
    assert members(1) == {"generation": 1, "engines": ("inference.0", "inference.1")}
    here.queue.served |= {"inference.0": 1}
    assert members(2) == {"generation": 1, "engines": ("inference.0", "inference.1")}
    assert members(3) == {"generation": 2, "engines": ("inference.0",)}
    here.queue.served |= {"inference.0": NOT_SERVING, "inference.1": 3}
    assert members(4) == {"generation": 3, "engines": ("inference.1",)}


def test_engines_that_do_not_come_cost_time_and_nothing_else(place: Any) -> None:
    import numpy as np

    here = place(inference_0="distributed")
    here.queue.served = {"inference.0": 0}
    assert here.sending.announcement(version(1))["members"]["generation"] == 1
    here.sending.send(version(1), {spec.name: (spec, np.zeros(spec.nbytes // 2, np.uint16)) for spec in SPECS})
    here.sending.settle()
    # New groups, as those are of no more use.
    assert here.sending.announcement(version(2))["members"]["generation"] == 2
