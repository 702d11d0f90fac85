"""How an engine takes versions, and when it takes them from the disk after all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcrl.checkpoint.transport.errors import TransportError
from hpcrl.engines.client import EngineClient, EngineError
from hpcrl.recipe import Limits, Recipe, Schedule
from hpcrl.roles.context import Identity, RoleContext
from hpcrl.roles.receiving import Receiving, Taken
from hpcrl.run.directory import RunDirectory
from hpcrl.run.rendezvous import Rendezvous
from hpcrl.tracking.journal import Journal, JournalReader

POLICY = {"version": 3, "path": "", "hash": "h", "trainer": "trainer", "ranks": 1}


class Place:
    """An engine's role context, with one way to take weights."""

    def __init__(self, folder: Path, way: str) -> None:
        run = RunDirectory.create(folder / "run", name="t", recipe_json="{}")
        self.attempt = run.new_attempt()
        recipe = Recipe(
            name="t",
            groups={},
            streams=(),
            schedule=Schedule(steps=1, prompts_per_step=1, samples_per_prompt=1),
            limits=Limits(call_s=0.2),
        )
        self.context = RoleContext(
            recipe=recipe,
            identity=Identity("inference", 0, 0, 1),
            attempt=self.attempt,
            queue=None,  # type: ignore[arg-type]
            rendezvous=Rendezvous(self.attempt.path / "rendezvous", run.run_id),
            journal=Journal(self.attempt.journal / "inference.0.jsonl"),
            key="k",
            ways={"inference.0": way} if way else {},  # type: ignore[dict-item]
        )
        self.engine = EngineClient("http://127.0.0.1:9", call_s=0.2)
        self.receiving = Receiving(self.context, self.engine, folder / "memory", pause="in_place")

    def fell_back(self) -> list[dict[str, Any]]:
        return [record for _, record in JournalReader(self.attempt.journal).read() if record["kind"] == "fell_back"]

    def close(self) -> None:
        self.receiving.close()
        self.engine.close()


@pytest.mark.parametrize(("way", "known"), [("", "disk"), ("disk", "disk")])
def test_without_a_way_the_disk_is_taken(tmp_path: Path, way: str, known: str) -> None:
    place = Place(tmp_path, way)
    assert place.receiving.way == known
    assert place.receiving.take(POLICY) is None
    assert place.fell_back() == []
    place.close()


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("memory", "version 3 to be in the shared memory"),
        ("tcp", "'weights/server' to be published"),
        ("distributed", "weights/trainer.0"),
    ],
)
def test_what_does_not_come_in_time_is_taken_from_the_disk_and_told(tmp_path: Path, way: str, words: str) -> None:
    place = Place(tmp_path, way)
    members = {"generation": 1, "engines": ["inference.0"]}
    assert place.receiving.take({**POLICY, "members": members}) is None
    (record,) = place.fell_back()
    assert (record["version"], record["way"]) == (3, way)
    assert words in record["error"]
    place.close()


def test_an_engine_that_is_not_broadcast_to_takes_the_disk(tmp_path: Path) -> None:
    place = Place(tmp_path, "distributed")
    for members in ({}, {"generation": 4, "engines": ["inference.1"]}):
        assert place.receiving.take({**POLICY, "members": members}) is None
    assert place.fell_back() == []
    place.close()


class FakeWay:
    """A way that does what it is told."""

    def __init__(self, outcome: Taken | Exception) -> None:
        self._outcome = outcome

    def take(self, policy: Any) -> Taken:
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome

    def close(self) -> None:
        pass


def test_an_engine_that_may_hold_a_mixture_is_not_handed_on_quietly(tmp_path: Path) -> None:
    place = Place(tmp_path, "memory")
    place.receiving._way = FakeWay(EngineError("http://e", "/update", "half way"))
    with pytest.raises(EngineError, match="half way"):
        place.receiving.take(POLICY)
    place.receiving._way = FakeWay(TransportError("gone"))
    assert place.receiving.take(POLICY) is None
    place.receiving._way = FakeWay(Taken(3, "h"))
    assert place.receiving.take(POLICY) == Taken(3, "h")
    place.close()
