from __future__ import annotations

from dataclasses import dataclass

import pytest

from hpcrl.plan.ways import choose, plan_ways
from hpcrl.recipe import FeedbackStream, Recipe, Role, RoleGroup, Schedule


@pytest.mark.parametrize(
    ("asked", "trainer", "engine", "way"),
    [
        ("auto", ["a"], "a", "memory"),
        ("auto", ["a", "a", "a"], "a", "memory"),
        ("auto", ["a", "b"], "a", "disk"),
        ("auto", ["b"], "a", "disk"),
        ("disk", ["a"], "a", "disk"),
        ("memory", ["a", "a"], "a", "memory"),
        ("memory", ["a", "b"], "b", "disk"),
        ("memory", ["b"], "a", "disk"),
        ("distributed", ["a"], "a", "distributed"),
        ("distributed", ["a", "b"], "c", "distributed"),
        ("tcp", ["a"], "b", "tcp"),
    ],
)
def test_the_way_depends_on_who_is_where(asked: str, trainer: list[str], engine: str, way: str) -> None:
    assert choose(asked, trainer_nodes=trainer, engine_node=engine).way == way


def test_why_is_said() -> None:
    assert "b alone" in choose("auto", trainer_nodes=["a", "b"], engine_node="b").why
    assert "2 nodes and the engine on b" in choose("memory", trainer_nodes=["a", "b"], engine_node="b").why


def test_an_unknown_way_is_named() -> None:
    with pytest.raises(ValueError, match="'pigeon'"):
        choose("pigeon", trainer_nodes=["a"], engine_node="a")


@dataclass(frozen=True, kw_only=True)
class FakeTrainer(Role):
    def announces(self) -> tuple[str, ...]:
        return ("policy",)


@dataclass(frozen=True, kw_only=True)
class FakeEngine(Role):
    transport: str = "auto"

    def listens(self) -> tuple[str, ...]:
        return ("policy",)


@dataclass(frozen=True, kw_only=True)
class FakeOther(Role):
    def announces(self) -> tuple[str, ...]:
        return ("served",)


def test_each_engine_has_its_way() -> None:
    recipe = Recipe(
        name="x",
        groups={
            "trainer": RoleGroup(role=FakeTrainer(), replicas=2),
            "near": RoleGroup(role=FakeEngine(), replicas=2),
            "far": RoleGroup(role=FakeEngine(transport="distributed")),
            "other": RoleGroup(role=FakeOther()),
        },
        streams=(),
        feedback=(FeedbackStream(name="policy"), FeedbackStream(name="served")),
        schedule=Schedule(steps=1, prompts_per_step=1, samples_per_prompt=1),
    )
    ways = plan_ways(recipe, {"trainer": ["a", "a"], "near": ["a", "b"], "far": ["c"], "other": ["d"]})
    assert {name: choice.way for name, choice in ways.items()} == {
        "near.0": "memory",
        "near.1": "disk",
        "far.0": "distributed",
    }


def test_an_engine_that_spans_nodes_takes_versions_from_the_disk():
    groups = {"trainer": RoleGroup(role=FakeTrainer()), "inference": RoleGroup(role=FakeEngine(transport="distributed"))}
    recipe = Recipe(name="t", groups=groups, streams=(), schedule=Schedule(steps=1, prompts_per_step=1, samples_per_prompt=1))
    nodes = {"trainer": ["a"], "inference": ["a", "b", "c"]}
    ways = plan_ways(recipe, nodes, ["inference.1", "inference.2"])
    assert [ways[f"inference.{rank}"].way for rank in range(3)] == ["distributed", "disk", "disk"]
    assert "spans nodes" in ways["inference.1"].why
