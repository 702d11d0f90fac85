from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from hpcrl.plan.allocation import Allocation, Node
from hpcrl.plan.placement import Placed, place
from hpcrl.recipe import ColocationRing, Recipe, Resources, Role, RoleGroup, Schedule
from hpcrl.run.errors import CheckFailed


@dataclass(frozen=True, kw_only=True)
class FakeServer(Role):
    takes_turns = gives_way = True


@dataclass(frozen=True, kw_only=True)
class FakeTrainer(Role):
    world = True
    process_per_gpu = True


@dataclass(frozen=True, kw_only=True)
class FakeSpanner(Role):
    process_per_node = True


def server(replicas: int = 1, **resources) -> RoleGroup:
    return RoleGroup(role=FakeServer(), replicas=replicas, resources=Resources(**resources))


def trainer(replicas: int = 1, **resources) -> RoleGroup:
    return RoleGroup(role=FakeTrainer(), replicas=replicas, resources=Resources(**resources))


def spanner(replicas: int = 1, **resources) -> RoleGroup:
    return RoleGroup(role=FakeSpanner(), replicas=replicas, resources=Resources(across_nodes=True, **resources))


def recipe(*rings: Sequence[str], **groups: RoleGroup) -> Recipe:
    return Recipe(
        name="x",
        groups=groups,
        streams=(),
        rings=tuple(ColocationRing(name=f"ring{index}", members=tuple(ring)) for index, ring in enumerate(rings)),
        schedule=Schedule(steps=1, prompts_per_step=1, samples_per_prompt=1),
    )


def of(placed: list[Placed], group: str) -> list[Placed]:
    return [item for item in placed if item.group == group]


def where(placed: list[Placed], group: str) -> list[tuple[int, tuple[int, ...]]]:
    return [(item.node, item.gpus) for item in of(placed, group)]


def problems(what: Recipe, allocation: Allocation) -> list[str]:
    with pytest.raises(CheckFailed) as error:
        place(what, allocation)
    return list(error.value.problems)


TWO = Allocation.uniform(nodes=2, gpus_per_node=4, cpus=16, memory_gib=100, gpu_memory_gib=80)


def test_a_server_takes_all_gpus_of_its_replica_and_a_trainer_one_a_process():
    placed = place(recipe(server=server(2, gpus=2), trainer=trainer(2, gpus=2)), TWO)
    assert where(placed, "server") == [(1, (0, 1)), (1, (2, 3))]
    assert where(placed, "trainer") == [(0, (0,)), (0, (1,)), (0, (2,)), (0, (3,))]
    assert [(p.replica, p.rank, p.world_size) for p in of(placed, "trainer")] == [(0, 0, 4), (0, 1, 4), (1, 2, 4), (1, 3, 4)]
    assert [(p.replica, p.rank, p.world_size) for p in of(placed, "server")] == [(0, 0, 2), (1, 1, 2)]


def test_no_replica_is_torn_between_nodes():
    placed = place(recipe(server=server(2, gpus=3)), TWO)
    assert where(placed, "server") == [(0, (0, 1, 2)), (1, (0, 1, 2))]
    assert "finds no room" in problems(recipe(server=server(2, gpus=3), other=server(1, gpus=2)), TWO)[0]


def test_a_replica_wider_than_a_node_is_refused_unless_it_may_span():
    (problem,) = problems(recipe(trainer=trainer(gpus=8)), TWO)
    assert "group trainer: a replica needs 8 GPUs on one node and the largest has 4" in problem
    assert "--set trainer.across_nodes=true" in problem
    placed = place(recipe(trainer=trainer(gpus=8, across_nodes=True)), TWO)
    assert [item.node for item in of(placed, "trainer")] == [0] * 4 + [1] * 4
    assert {item.replica for item in of(placed, "trainer")} == {0}


def test_a_spanning_replica_stays_on_one_node_where_it_fits_and_splits_evenly_where_not():
    small = recipe(one=server(1, gpus=2), trainer=trainer(gpus=4, across_nodes=True))
    assert {item.node for item in of(place(small, TWO), "trainer")} == {0}
    even = place(recipe(trainer=trainer(gpus=6, across_nodes=True)), TWO)
    assert [item.node for item in of(even, "trainer")] == [0, 0, 0, 1, 1, 1]


def test_a_spanning_replica_counts_its_host_memory_once_on_each_node():
    nodes = tuple(
        Node(name=f"n{index}", address=f"n{index}", gpus=tuple(range(gpus)), cpus=16, memory_gib=100)
        for index, gpus in enumerate([4, 2])
    )
    placed = place(recipe(trainer=trainer(gpus=6, across_nodes=True, host_memory_gib=60)), Allocation(nodes=nodes))
    assert [item.node for item in of(placed, "trainer")] == [0, 0, 0, 0, 1, 1]


def test_one_process_cannot_span_nodes():
    (problem,) = problems(recipe(server=server(gpus=8, across_nodes=True)), TWO)
    assert "one process drives 8 GPUs and the largest node has 4" in problem


def test_a_process_on_each_node_drives_the_gpus_there():
    four = Allocation.uniform(nodes=4, gpus_per_node=4, cpus=16)
    placed = of(place(recipe(engine=spanner(2, gpus=8)), four), "engine")
    assert [(p.node, p.gpus) for p in placed] == [(node, (0, 1, 2, 3)) for node in range(4)]
    assert [(p.replica, p.rank, p.world_size, p.part, p.parts) for p in placed] == [
        (0, 0, 4, 0, 2),
        (0, 1, 4, 1, 2),
        (1, 2, 4, 0, 2),
        (1, 3, 4, 1, 2),
    ]
    assert [p.first for p in placed] == [True, False, True, False]


def test_a_replica_that_fits_a_node_is_one_process_though_it_may_span():
    placed = place(recipe(engine=spanner(3, gpus=2)), TWO)
    assert where(placed, "engine") == [(0, (0, 1)), (0, (2, 3)), (1, (0, 1))]
    assert {(p.part, p.parts, p.first) for p in of(placed, "engine")} == {(0, 1, False)}


def test_parts_of_a_replica_are_alike_however_many_gpus_its_nodes_have():
    nodes = tuple(
        Node(name=f"n{index}", address=f"n{index}", gpus=tuple(range(gpus)), cpus=16) for index, gpus in enumerate([4, 2, 2])
    )
    placed = of(place(recipe(engine=spanner(gpus=8)), Allocation(nodes=nodes)), "engine")
    assert [(p.node, len(p.gpus), p.part, p.parts) for p in placed] == [(0, 2, 0, 4), (0, 2, 1, 4), (1, 2, 2, 4), (2, 2, 3, 4)]


def test_ring_members_share_the_same_gpus():
    placed = place(recipe(("inference", "trainer"), inference=server(4, gpus=2), trainer=trainer(2, gpus=4)), TWO)
    cards = [{(item.node, gpu) for item in of(placed, name) for gpu in item.gpus} for name in ("inference", "trainer")]
    assert cards[0] == cards[1]
    assert len(cards[0]) == 8
    assert where(placed, "inference") == [(0, (0, 1)), (0, (2, 3)), (1, (0, 1)), (1, (2, 3))]


def test_groups_outside_a_ring_never_share_a_card():
    placed = place(recipe(("a", "b"), a=server(2, gpus=1), b=server(2, gpus=1), c=server(6, gpus=1)), TWO)
    ring = {(item.node, gpu) for item in of(placed, "a") for gpu in item.gpus}
    alone = {(item.node, gpu) for item in of(placed, "c") for gpu in item.gpus}
    assert not ring & alone
    assert len(alone) == 6


def test_ring_members_whose_sizes_do_not_line_up_on_a_node_are_refused():
    (problem,) = problems(recipe(("a", "b"), a=server(2, gpus=3), b=server(3, gpus=2)), TWO)
    assert "ring ring0 (a, b): replicas of a 3, b 2 GPUs only line up on 6 GPUs of one node" in problem


def test_more_gpus_than_there_are_names_the_groups_and_the_ways_out():
    (problem,) = problems(recipe(server=server(4, gpus=2), trainer=trainer(4, gpus=1)), TWO)
    assert "12 GPUs are asked for and 2 nodes have 8: server 8 (4 x 2), trainer 4 (4 x 1)" in problem
    assert "add 1 node of 4 GPUs (--nodes 3)" in problem
    assert "--set server.replicas=2" in problem


def test_gpus_on_a_host_without():
    (problem,) = problems(recipe(server=server(gpus=1)), Allocation.uniform(nodes=1, gpus_per_node=0))
    assert "1 GPU is asked for and 1 node has 0: server 1 (1 x 1)" in problem


def test_heavy_groups_are_spread_over_nodes():
    placed = place(recipe(heavy=server(2, gpus=1, host_memory_gib=60), light=server(6, gpus=1, host_memory_gib=5)), TWO)
    assert [item.node for item in of(placed, "heavy")] == [0, 1]
    assert len(of(placed, "light")) == 6
    cpu_only = place(recipe(heavy=server(2, host_memory_gib=60)), TWO)
    assert {item.node for item in of(cpu_only, "heavy")} == {0, 1}


def test_watermarks_that_cannot_fit_are_refused_with_their_numbers():
    assert (
        "gpu_memory_gib is 100 and the largest GPU has 80 GiB"
        in problems(recipe(server=server(gpus=1, gpu_memory_gib=100)), TWO)[0]
    )
    assert (
        "it needs 120 GiB of host memory together on one node and the largest has 100"
        in problems(recipe(server=server(host_memory_gib=120)), TWO)[0]
    )
    assert (
        "240 GiB of host memory are asked for and all nodes together have 200: group server 240"
        in problems(recipe(server=server(4, host_memory_gib=60)), TWO)[0]
    )
    (room,) = problems(recipe(server=server(3, host_memory_gib=60)), TWO)
    assert "group server finds no room for 3 x (1 cores, 60 GiB)" in room
    assert "2 of its replicas would fit" in room


def with_token(made: Recipe, fallback: str, rest_gib: float) -> Recipe:
    return replace(made, rings=(replace(made.rings[0], fallback=fallback, rest_gib=rest_gib),))


def test_ring_memory_is_that_of_all_members_on_a_card_and_with_a_token_of_the_largest_and_what_the_others_keep():
    together = recipe(("a", "b", "c"), **{name: server(gpus=1, gpu_memory_gib=30) for name in "abc"})
    (problem,) = problems(together, TWO)
    assert "ring ring0 (a, b, c): gpu_memory_gib is 90 together (a 30, b 30, c 30) and the largest GPU has 80 GiB" in problem
    assert "have its members take turns (a ring with a fallback)" in problem
    place(with_token(together, "a", rest_gib=25), TWO)
    (problem,) = problems(with_token(together, "a", rest_gib=25.5), TWO)
    assert "gpu_memory_gib is 81 (a 30, and 25.5 that each of 2 others keeps) and the largest GPU has 80 GiB; use" in problem


def test_ring_memory_on_the_host_is_the_sum():
    sizes = {"gpus": 4, "gpu_memory_gib": 40}
    place(recipe(("a", "b"), a=server(host_memory_gib=50, **sizes), b=server(host_memory_gib=50, **sizes)), TWO)
    (problem,) = problems(recipe(("a", "b"), a=server(host_memory_gib=60, **sizes), b=server(host_memory_gib=50, **sizes)), TWO)
    assert "ring ring0 (a, b): it needs 110 GiB" in problem


def test_small_cards_are_passed_over():
    nodes = (
        Node(name="small", address="a", gpus=(0, 1), gpu_memory_gib=24, cpus=8),
        Node(name="large", address="b", gpus=(0, 1), gpu_memory_gib=80, cpus=8),
    )
    placed = place(recipe(server=server(2, gpus=1, gpu_memory_gib=40)), Allocation(nodes=nodes))
    assert where(placed, "server") == [(1, (0,)), (1, (1,))]


def test_cores_are_never_promised_twice_unless_they_are_shared():
    (problem,) = problems(recipe(a=server(33, cpus=1)), TWO)
    assert "33 cores are asked for and all nodes together have 32: group a 33" in problem
    (problem,) = problems(recipe(a=server(cpus=20)), TWO)
    assert "20 cores together on one node and the largest has 16" in problem
    local = Allocation.uniform(nodes=1, gpus_per_node=0, cpus=2, cpus_shared=True)
    assert len(of(place(recipe(a=server(33, cpus=4)), local), "a")) == 33


def test_members_of_a_ring_without_gpus_share_cores_in_turn():
    one = Allocation.uniform(nodes=1, gpus_per_node=0, cpus=4)
    groups = {"a": server(2, cpus=2), "b": server(1, cpus=2)}
    place(recipe(("a", "b"), **groups), one)
    assert "6 cores are asked for" in problems(recipe(**groups), one)[0]


def test_groups_without_gpus_go_to_nodes_without_first_and_spread():
    nodes = (
        Node(name="g", address="g", gpus=(0, 1), cpus=64),
        Node(name="c0", address="c0", cpus=4),
        Node(name="c1", address="c1", cpus=4),
    )
    placed = place(recipe(reward=server(10), server=server(gpus=2)), Allocation(nodes=nodes))
    counts = [sum(item.node == node for item in of(placed, "reward")) for node in range(3)]
    assert counts == [2, 4, 4]
    assert where(placed, "server") == [(0, (0, 1))]


def test_gpus_of_a_replica_lie_in_one_numa_domain_and_in_a_row():
    node = Node(name="n", address="n", gpus=(0, 1, 2, 3, 4, 5, 6, 7), numa=(0, 0, 0, 1, 1, 1, 1, 0), cpus=64)
    placed = place(recipe(a=server(1, gpus=4), b=server(2, gpus=2)), Allocation(nodes=(node,)))
    assert where(placed, "a") == [(0, (3, 4, 5, 6))]
    assert where(placed, "b") == [(0, (0, 1)), (0, (2, 7))]


def test_a_unit_stays_under_one_switch_where_one_holds_it():
    nodes = tuple(
        Node(name=f"n{index}", address=f"n{index}", gpus=(0, 1), cpus=64, switch=switch)
        for index, switch in enumerate(["s1", "s2", "s1", "s2", "s2"])
    )
    placed = place(recipe(trainer=trainer(3, gpus=2)), Allocation(nodes=nodes))
    assert sorted({item.node for item in of(placed, "trainer")}) == [1, 3, 4]
    placed = place(recipe(trainer=trainer(2, gpus=2)), Allocation(nodes=nodes))
    assert sorted({item.node for item in of(placed, "trainer")}) == [0, 2]


def test_the_data_plane_is_placed_too():
    placed = place(recipe(a=server()), TWO)
    assert [(item.rank, item.node) for item in of(placed, "queue")] == [(0, 0), (1, 0), (2, 1)]
    assert of(placed, "queue")[0].slot == 0
    many = place(recipe(a=server()), Allocation.uniform(nodes=100, gpus_per_node=1))
    nodes = [item.node for item in of(many, "queue")]
    assert nodes[0] == 0
    assert nodes[1:] == [0, 12, 25, 37, 50, 62, 75, 87]


def test_each_process_belongs_to_a_slot_of_its_node():
    placed = place(recipe(a=server(2, gpus=2), b=server(8)), TWO)
    slots = TWO.slots
    for item in placed:
        slot = slots[item.slot]
        assert slot.node == item.node
        if item.gpus:
            assert slot.gpu == item.gpus[0]
    for node in (0, 1):
        load = [sum(item.slot == slot.index for item in placed) for slot in slots if slot.node == node]
        assert max(load) - min(load) <= 1


def test_all_that_cannot_fit_comes_at_once():
    assert len(problems(recipe(a=server(gpus=5), b=server(gpus=1, gpu_memory_gib=90), c=server(cpus=17)), TWO)) == 3
    bad = Allocation(nodes=(Node(name="a", address="a", cpus=0), Node(name="a", address="a")))
    assert len(problems(recipe(a=server()), bad)) == 2
