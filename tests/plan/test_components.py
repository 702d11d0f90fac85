from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcrl.plan.allocation import Allocation, Node
from hpcrl.plan.plan import Plan, make_plan
from hpcrl.recipe import ColocationRing, Recipe, Resources, Role, RoleGroup, Schedule
from hpcrl.run.errors import CheckFailed


@dataclass(frozen=True, kw_only=True)
class FakeServer(Role):
    pass


def recipe(rings: tuple[ColocationRing, ...] = (), **groups: tuple[int, int]) -> Recipe:
    """Groups by name: replicas, GPUs of each."""
    return Recipe(
        name="x",
        groups={
            name: RoleGroup(role=FakeServer(), replicas=replicas, resources=Resources(gpus=gpus))
            for name, (replicas, gpus) in groups.items()
        },
        streams=(),
        rings=rings,
        schedule=Schedule(steps=1, prompts_per_step=1, samples_per_prompt=1),
    )


def node(name: str, component: str, gpus: int = 0, cpus: int = 16) -> Node:
    return Node(name=name, address=name, gpus=tuple(range(gpus)), cpus=cpus, component=component)


JOB = Allocation(nodes=(node("a", "engines", 4), node("b", "hub"), node("c", "trainers", 4), node("d", "trainers", 4)))
MAPPING = {"reward": "hub", "inference": "engines", "trainer": "trainers"}


def problems(what: Recipe, mapping: dict[str, str], allocation: Allocation = JOB) -> str:
    with pytest.raises(CheckFailed) as error:
        make_plan(what, allocation, "r", mapping)
    return "\n".join(error.value.problems)


def test_groups_keep_to_their_component_and_the_controller_to_a_node_without_gpus():
    what = recipe(reward=(3, 0), inference=(2, 1), trainer=(2, 4))
    plan = make_plan(what, JOB, "r", MAPPING)
    nodes = {group: [process.node for process in plan.of_group(group)] for group in (*MAPPING, "queue")}
    assert nodes == {
        "reward": ["b"] * 3,
        "inference": ["a", "a"],
        "trainer": ["c", "d"],
        "queue": ["b", "a", "b", "c", "d"],
    }
    assert JOB.slots[plan.of_group("queue")[0].slot].node == 1


def test_room_in_another_component_does_not_help():
    text = problems(recipe(reward=(1, 0), inference=(5, 1), trainer=(1, 1)), MAPPING)
    assert "5 GPUs are asked for and 1 node has 4: inference" in text
    assert "17 cores are asked for and all nodes together have 16: group reward" in problems(
        recipe(reward=(17, 0), inference=(1, 1), trainer=(1, 1)), MAPPING
    )


def test_what_does_not_fit_together_is_told():
    ring = (ColocationRing(name="ring", members=("inference", "trainer")),)
    text = problems(recipe(ring, reward=(1, 0), inference=(1, 1), trainer=(1, 1)), MAPPING)
    assert "ring ring (inference, trainer): its members share nodes and belong to components engines, trainers" in text
    assert "group reward belongs to no component" in problems(recipe(reward=(1, 0)), {})
    assert "component 'hubb' has no node; the allocation has 'engines', 'hub'" in problems(recipe(a=(1, 0)), {"a": "hubb"})


def test_without_a_mapping_components_change_nothing():
    plain = dataclasses.replace(JOB, nodes=tuple(dataclasses.replace(item, component="") for item in JOB.nodes))
    what = recipe(reward=(3, 0), inference=(2, 1), trainer=(2, 4))
    assert make_plan(what, JOB, "r").processes == make_plan(what, plain, "r").processes
    assert make_plan(what, plain, "r").of_group("queue")[0].node == "a"
    assert "component" not in json.dumps(plain.to_json())


def test_two_components_may_share_a_machine():
    shared = Allocation(nodes=(node("n", "hub"), node("n", "engines", 2)))
    plan = make_plan(recipe(reward=(2, 0), inference=(2, 1)), shared, "r", {"reward": "hub", "inference": "engines"})
    ports = [port for process in plan.processes for port in process.ports]
    assert len(ports) == len(set(ports))
    twice = Allocation(nodes=(node("n", "hub"), node("n", "hub")))
    assert twice.problems() == ["the allocation names node n twice"]


@given(
    st.dictionaries(st.sampled_from("abcd"), st.tuples(st.integers(1, 4), st.sampled_from([0, 0, 1, 2])), min_size=1),
    st.lists(st.tuples(st.sampled_from(["x", "y"]), st.sampled_from([0, 2, 4])), min_size=1, max_size=5),
    st.fixed_dictionaries({name: st.sampled_from(["x", "y"]) for name in "abcd"}),
    st.randoms(use_true_random=False),
)
@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
def test_every_plan_keeps_to_components_and_is_the_same_in_any_order(groups, machines, mapping, random):
    allocation = Allocation(nodes=tuple(node(f"n{i}", component, gpus) for i, (component, gpus) in enumerate(machines)))

    def plan(names: list[str]) -> Plan | None:
        try:
            return make_plan(recipe(**{name: groups[name] for name in names}), allocation, "r", {n: mapping[n] for n in names})
        except CheckFailed:
            return None

    names = list(groups)
    made = plan(names)
    random.shuffle(names)
    assert plan(names) == made
    if made is None:
        return
    assert Plan.from_json(made.to_json()) == made
    component = {item.name: item.component for item in allocation.nodes}
    assert all(component[process.node] == mapping[process.group] for process in made.processes if process.group != "queue")
    for name, (replicas, gpus) in groups.items():
        assert sum(len(process.gpus) for process in made.of_group(name)) == replicas * gpus
    cards = [(process.node, gpu) for process in made.processes for gpu in process.gpus]
    assert len(cards) == len(set(cards))
    controller = next(item for item in allocation.nodes if item.name == made.of_group("queue")[0].node)
    assert not controller.gpus or all(item.gpus for item in allocation.nodes)
