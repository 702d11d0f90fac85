from __future__ import annotations

from hpcrl.plan.edges import edges_across
from hpcrl.recipe import Column, Reads, Recipe, Role, RoleGroup, Schedule, Stream, Writes


class Source(Role):
    def writes(self) -> tuple[Writes, ...]:
        return (Writes(stream="s", columns=("a", "b"), creates=True),)


class Judge(Role):
    def reads(self) -> tuple[Reads, ...]:
        return (Reads(stream="s", columns=("b",)),)

    def writes(self) -> tuple[Writes, ...]:
        return (Writes(stream="s", columns=("c",)),)


class End(Role):
    def reads(self) -> tuple[Reads, ...]:
        return (Reads(stream="s", columns=("a", "c"), final=True),)


RECIPE = Recipe(
    name="r",
    groups={"source": RoleGroup(role=Source()), "judge": RoleGroup(role=Judge()), "end": RoleGroup(role=End())},
    streams=(Stream(name="s", columns=tuple(Column(name=name, dtype="int64") for name in "abcd")),),
    schedule=Schedule(steps=1, prompts_per_step=1, samples_per_prompt=1),
)


def across(**nodes: str) -> list[str]:
    return sorted(column for _, column in edges_across(RECIPE, {name: frozenset(text) for name, text in nodes.items()}))


def test_on_one_node_nothing_travels():
    assert across(source="x", judge="x", end="x") == []


def test_only_columns_between_nodes_travel():
    assert across(source="x", judge="x", end="y") == ["a", "c"]
    assert across(source="x", judge="y", end="x") == ["b", "c"]


def test_replicas_on_several_nodes_make_all_their_columns_travel():
    assert across(source="xy", judge="x", end="x") == ["a", "b"]


def test_a_column_that_nobody_touches_does_not_travel():
    assert "d" not in across(source="xyz", judge="xyz", end="xyz")
