"""Components of a heterogeneous job: which nodes a group may go to."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from hpcrl.plan.allocation import Allocation
from hpcrl.plan.demand import Unit
from hpcrl.plan.feasibility import unit_name
from hpcrl.plan.nodes import NodeState

Part = tuple[Allocation, list[Unit], list[Unit]]


def component_problems(units: Sequence[Unit], allocation: Allocation, components: Mapping[str, str] | None) -> list[str]:
    """What does not fit together of groups, rings, components and nodes; a sentence each."""
    if components is None:
        return []
    there = dict.fromkeys(node.component for node in allocation.nodes)
    problems = []
    for unit in units:
        lost = [member.name for member in unit.members if member.name not in components]
        held = {components[member.name] for member in unit.members if member.name in components}
        problems += [f"group {name} belongs to no component" for name in lost]
        if len(held) > 1:
            problems.append(f"{unit_name(unit)}: its members share nodes and belong to components {', '.join(sorted(held))}")
        problems += [
            f"{unit_name(unit)}: component {name!r} has no node; the allocation has {', '.join(map(repr, there))}"
            for name in sorted(held - there.keys())
        ]
    return problems


def parts_of(
    with_gpus: Sequence[Unit], without: Sequence[Unit], allocation: Allocation, components: Mapping[str, str] | None
) -> Iterator[Part]:
    """The nodes of each component with the units that go there; all of them at once without components."""
    if components is None:
        yield allocation, list(with_gpus), list(without)
        return
    for name in dict.fromkeys(node.component for node in allocation.nodes):
        nodes = tuple(node for node in allocation.nodes if node.component == name)
        yield (
            dataclasses.replace(allocation, nodes=nodes),
            [unit for unit in with_gpus if _component(unit, components) == name],
            [unit for unit in without if _component(unit, components) == name],
        )


def part_of(unit: Unit, states: Sequence[NodeState], components: Mapping[str, str] | None) -> Sequence[NodeState]:
    """The nodes that a unit may go to."""
    if components is None:
        return states
    name = _component(unit, components)
    return [state for state in states if state.node.component == name]


def _component(unit: Unit, components: Mapping[str, str]) -> str:
    return components[unit.members[0].name]
