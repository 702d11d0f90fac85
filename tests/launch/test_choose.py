from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcrl.launch.choose import make_layout
from hpcrl.launch.layout import Asked, Layout
from hpcrl.launch.site import NodeShape, Site
from hpcrl.plan.placement import place
from hpcrl.plan.plan import make_plan
from hpcrl.recipe import ColocationRing, Recipe, Resources, Role, RoleGroup, Schedule
from hpcrl.run.errors import CheckFailed


@dataclass(frozen=True, kw_only=True)
class FakeRole(Role):
    pass


@dataclass(frozen=True, kw_only=True)
class FakeServer(Role):
    service = True


@dataclass(frozen=True, kw_only=True)
class FakeTrainer(Role):
    world = True
    process_per_gpu = True


@dataclass(frozen=True, kw_only=True)
class FakeSpanner(Role):
    service = True
    process_per_node = True


def recipe(*rings: tuple[str, ...], **groups: RoleGroup) -> Recipe:
    return Recipe(
        name="x",
        groups=groups,
        streams=(),
        rings=tuple(ColocationRing(name=f"ring{index}", members=ring) for index, ring in enumerate(rings)),
        schedule=Schedule(steps=1, prompts_per_step=1, samples_per_prompt=1),
    )


def group(role: Role, replicas: int = 1, **resources) -> RoleGroup:
    return RoleGroup(role=role, replicas=replicas, resources=Resources(**resources))


SITE = Site(
    name="s",
    partition="main",
    preemptible_partitions=("low", "spot"),
    node=NodeShape(gpus=4, cpus=32, memory_gib=64, gpu_memory_gib=80),
)
# Trainer on two nodes of four GPUs, an engine of two, and small helpers.
UNEQUAL = recipe(
    rollout=group(FakeRole(), 2),
    reward=group(FakeRole(), cpus=2),
    inference=group(FakeServer(), gpus=2, cpus=4),
    trainer=group(FakeTrainer(), 2, gpus=4, cpus=4),
)
EQUAL = recipe(
    rollout=group(FakeRole()), inference=group(FakeServer(), 2, gpus=2), trainer=group(FakeTrainer(), gpus=4, cpus=2)
)


def shapes(layout: Layout) -> list[tuple[str, int, int]]:
    return [(item.name, item.nodes, item.gpus_per_node) for item in layout.components]


def problems(what: Recipe, site: Site = SITE, **asked) -> str:
    with pytest.raises(CheckFailed) as error:
        make_layout(what, Asked(**asked), site)
    return "\n".join(error.value.problems)


def test_unequal_resources_become_components_with_the_hub_first():
    layout = make_layout(UNEQUAL, Asked(), SITE)
    assert shapes(layout) == [("hub", 1, 0), ("inference", 1, 2), ("trainer", 2, 4)]
    hub, inference, trainer = layout.components
    assert hub.groups == ("reward", "rollout")
    # Four cores for its processes, two for the supervisor and the data plane.
    assert (hub.cpus_per_node, inference.cpus_per_node, trainer.cpus_per_node) == (6, 4, 16)
    assert (inference.memory_gib, trainer.memory_gib) == (32, 64)
    assert not layout.no_kill
    assert layout.minutes == 60
    assert layout.mapping == {"reward": "hub", "rollout": "hub", "inference": "inference", "trainer": "trainer"}


def test_equal_resources_become_a_single_allocation():
    layout = make_layout(EQUAL, Asked(), SITE)
    assert shapes(layout) == [("all", 2, 4)]
    assert layout.mapping is None
    assert not layout.is_het
    assert shapes(make_layout(recipe(a=group(FakeRole())), Asked(), SITE)) == [("all", 1, 0)]


def test_components_of_equal_nodes_are_merged_unless_asked_for():
    what = dataclasses.replace(EQUAL, groups={**EQUAL.groups, "rollout": group(FakeRole(), 60)})
    assert shapes(make_layout(what, Asked(), SITE)) == [("hub", 2, 0), ("inference+trainer", 2, 4)]
    apart = make_layout(what, Asked(layout="het"), SITE)
    assert shapes(apart) == [("hub", 2, 0), ("inference", 1, 4), ("trainer", 1, 4)]


def test_without_gpus_services_and_worlds_get_components_where_asked_for():
    what = recipe(rollout=group(FakeRole()), inference=group(FakeServer(), cpus=2), trainer=group(FakeTrainer(), 2, cpus=20))
    assert shapes(make_layout(what, Asked(layout="het"), SITE)) == [("hub", 1, 0), ("inference", 1, 0), ("trainer", 2, 0)]
    assert shapes(make_layout(what, Asked(), SITE)) == [("all", 2, 0)]


def test_a_ring_is_one_component():
    what = recipe(
        ("inference", "trainer"),
        rollout=group(FakeRole(), 40),
        inference=group(FakeServer(), 2, gpus=2),
        trainer=group(FakeTrainer(), gpus=4),
    )
    layout = make_layout(what, Asked(layout="het"), SITE)
    assert shapes(layout) == [("hub", 2, 0), ("ring0", 1, 4)]
    assert layout.components[1].groups == ("inference", "trainer")


def test_node_loss_takes_a_single_allocation_with_spares():
    layout = make_layout(UNEQUAL, Asked(survive_node_loss=True, spares=1), SITE)
    assert shapes(layout) == [("all", 4, 4)]
    assert layout.no_kill
    assert layout.components[0].spares == 1
    assert len(layout.allocation().nodes) == 3
    assert make_layout(EQUAL, Asked(spares=1), SITE).no_kill
    assert "never starts again" in problems(UNEQUAL, spares=1, layout="het")
    assert "never starts again" in problems(UNEQUAL, survive_node_loss=True, nodes_of={"trainer": 2})


def test_numbers_that_do_not_fit_say_what_would():
    text = problems(UNEQUAL, nodes=2)
    assert "it needs 4 nodes (hub 1 node without GPUs, inference 1 node x 2 GPUs, trainer 2 nodes x 4 GPUs), asked 2" in text
    assert "needs 3 nodes x 4 GPUs, asked 2; ask --nodes 3" in text
    assert shapes(make_layout(UNEQUAL, Asked(nodes=3), SITE)) == [("all", 3, 4)]
    assert "--nodes 4" in problems(UNEQUAL, nodes=3, layout="het")
    big = recipe(trainer=group(FakeTrainer(), 6, gpus=4))
    text = problems(big, nodes=4)
    assert "needs 6 nodes x 4 GPUs, asked 4; ask --nodes 6" in text
    assert "24 GPUs are asked for and 4 nodes have 16" in text
    assert "a replica needs 4 GPUs on one node and the largest has 2" in problems(big, gpus_per_node=2)
    assert "8 GPUs a node are asked for and nodes of site s have 4" in problems(big, gpus_per_node=8)
    assert "does not say how many GPUs" in problems(big, site=Site(name="s"))


def test_nodes_that_would_idle_are_refused():
    text = problems(recipe(a=group(FakeRole(), 2)), nodes=3)
    assert "1 of 3 nodes would hold no role" in text
    assert "GPUs of" in problems(UNEQUAL, nodes=6)


def test_asked_nodes_spread_what_can_be_spread():
    what = recipe(engine=group(FakeServer(), 4, gpus=1, cpus=2))
    assert shapes(make_layout(what, Asked(), SITE)) == [("all", 1, 4)]
    assert shapes(make_layout(what, Asked(nodes=4), SITE)) == [("all", 4, 1)]
    apart = make_layout(UNEQUAL, Asked(nodes=5, nodes_of={"hub": 2}), SITE)
    assert shapes(apart)[0] == ("hub", 2, 0)


def test_preemptible_and_protected_components_are_not_mixed():
    text = problems(UNEQUAL, partitions={"inference": "low", "hub": "low"})
    assert "component hub (low) can be preempted and trainer (main) cannot: Slurm never preempts" in text
    assert "reward, rollout must stay" in text
    assert "component inference" not in text
    text = problems(UNEQUAL, partitions={"trainer": "low"})
    assert "component trainer (low) can be preempted and hub (main), inference (main) cannot" in text
    assert "names preemptible and protected partitions" in problems(UNEQUAL, partition="low,main")
    assert "names preemptible and protected partitions" in problems(UNEQUAL, partitions={"inference": "low,main"})
    layout = make_layout(UNEQUAL, Asked(partition="low", partitions={"trainer": "spot"}), SITE)
    assert [item.partition for item in layout.components] == ["low", "low", "spot"]
    assert "nearest: trainer" in problems(UNEQUAL, partitions={"traner": "low"})
    assert "only for layout het" in problems(UNEQUAL, partitions={"trainer": "low"}, layout="single")


def test_preemptible_services_become_jobs_of_their_own():
    layout = make_layout(UNEQUAL, Asked(partitions={"inference": "low"}), SITE)
    assert shapes(layout) == [("hub", 1, 0), ("trainer", 2, 4), ("inference", 1, 2)]
    assert [item.name for item in layout.main] == ["hub", "trainer"]
    assert [item.name for item in layout.joined] == ["inference"]
    assert layout.is_het
    assert layout.slots == {"hub": range(1), "trainer": range(1, 9), "inference": range(9, 11)}
    assert Layout.from_json(layout.to_json()) == layout
    plan = make_plan(UNEQUAL, layout.allocation(), "r1", layout.mapping)
    assert {p.slot for p in plan.processes if p.group == "inference"} == {9}
    assert plan == make_plan(UNEQUAL, layout.allocation(), "r1", layout.mapping)
    assert not make_layout(UNEQUAL, Asked(partition="low"), SITE).joined, "one kind is one job"


def test_the_first_protected_component_leads():
    what = recipe(inference=group(FakeServer(), gpus=2, cpus=4), trainer=group(FakeTrainer(), gpus=4, cpus=4))
    layout = make_layout(what, Asked(layout="het", partitions={"inference": "spot"}), SITE)
    assert shapes(layout) == [("trainer", 1, 4), ("inference", 1, 2)]
    assert not layout.is_het
    assert layout.mapping == {"inference": "inference", "trainer": "trainer"}
    # The supervisor's cores are the leader's: 16 and 2 of them, over 4 ignitors.
    assert [item.cpus_per_node for item in layout.components] == [20, 4]


def test_cpu_components_go_to_their_own_partition_and_shape():
    site = dataclasses.replace(SITE, cpu_partition="cpu", cpu_node=NodeShape(cpus=128, memory_gib=200))
    hub = make_layout(UNEQUAL, Asked(layout="het"), site).components[0]
    assert (hub.partition, hub.memory_gib) == ("cpu", 10)
    whole = make_layout(UNEQUAL, Asked(layout="het"), dataclasses.replace(site, exclusive=True)).components
    assert [(item.gpus_per_node, item.cpus_per_node) for item in whole] == [(0, 128), (4, 32), (4, 32)]


def test_bad_numbers_come_at_once():
    text = problems(UNEQUAL, nodes=0, spares=-1, time="tomorrow", nodes_of={"hub": 0})
    for part in ("nodes is 0", "spares is -1", "'tomorrow' is no time limit", "nodes of hub is 0"):
        assert part in text


def test_json_round_trip():
    layout = make_layout(UNEQUAL, Asked(time="2:00:00"), SITE)
    assert Layout.from_json(layout.to_json()) == layout
    assert layout.minutes == 120
    with pytest.raises(CheckFailed, match="no layout"):
        Layout.from_json("{}")


def test_a_plan_on_the_layout_keeps_groups_to_their_components():
    layout = make_layout(UNEQUAL, Asked(), SITE)
    plan = make_plan(UNEQUAL, layout.allocation(), "r1", layout.mapping)
    component = {node.name: node.component for node in layout.allocation().nodes}
    for process in plan.processes:
        if process.group != "queue":
            assert component[process.node] == layout.mapping[process.group]
    assert plan.of_group("queue")[0].node == "hub0"


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    groups = {}
    for index in range(draw(st.integers(1, 4))):
        role = draw(st.sampled_from([FakeRole(), FakeServer(), FakeTrainer(), FakeSpanner()]))
        groups[f"g{index}"] = group(
            role,
            draw(st.integers(1, 5)),
            gpus=draw(st.sampled_from([0, 0, 1, 2, 4, 8])),
            cpus=draw(st.integers(1, 6)),
            host_memory_gib=draw(st.sampled_from([0.0, 0.1, 10.0, 30.0])),
            across_nodes=isinstance(role, FakeTrainer | FakeSpanner) and draw(st.booleans()),
        )
    return recipe(**groups)


@given(
    recipes(),
    st.sampled_from(["auto", "het", "single"]),
    st.sampled_from([None, 1, 2, 3, 5]),
    st.integers(0, 1),
    st.booleans(),
    st.sampled_from([0.0, 64.0, 62.5]),
    st.sampled_from([0, 30, 32]),
)
@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow])
def test_every_layout_holds_its_recipe_and_is_none_that_slurm_breaks(what, kind, nodes, spares, exclusive, memory, cpus):
    site = dataclasses.replace(SITE, exclusive=exclusive, node=NodeShape(gpus=4, cpus=cpus, memory_gib=memory))
    try:
        layout = make_layout(what, Asked(layout=kind, nodes=nodes, spares=spares), site)
    except CheckFailed:
        return
    place(what, layout.allocation(), layout.mapping)
    assert not (layout.is_het and layout.no_kill)
    assert sorted(name for item in layout.components for name in item.groups) == sorted(what.groups)
    assert nodes is None or sum(item.nodes - item.spares for item in layout.components) == nodes
    for item in layout.components:
        assert item.cpus_per_node % item.ignitors_per_node == 0
        assert item.gpus_per_node <= 4
        assert not cpus or item.cpus_per_node <= cpus
        assert not memory or item.memory_gib <= memory
