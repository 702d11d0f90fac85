from __future__ import annotations

import json

import pytest

from hpcrl.plan.allocation import Allocation, Node, Slot
from hpcrl.run.errors import CheckFailed

MIXED = Allocation(
    nodes=(
        Node(name="g", address="10.0.0.1", gpus=(0, 2), gpu_memory_gib=80, cpus=8, memory_gib=64.5, numa=(0, 1), switch="s1"),
        Node(name="c", address="10.0.0.2", cpus=4, busy=((10240, 10496),), ephemeral=(40000, 50000)),
    ),
    cpus_shared=True,
)


def test_a_slot_for_each_gpu_and_each_node_without():
    assert MIXED.slots == (Slot(0, 0, 0), Slot(1, 0, 2), Slot(2, 1, None))
    assert MIXED.gpus == 2


def test_json_round_trip():
    assert Allocation.from_json(json.loads(json.dumps(MIXED.to_json()))) == MIXED


@pytest.mark.parametrize("value", [{}, {"nodes": [{"nam": "x"}], "cpus_shared": False}, {"nodes": [3], "cpus_shared": False}])
def test_other_json_is_refused(value):
    with pytest.raises(CheckFailed, match="no allocation"):
        Allocation.from_json(value)


def test_uniform():
    allocation = Allocation.uniform(nodes=3, gpus_per_node=4, cpus=16)
    assert [node.name for node in allocation.nodes] == ["n0", "n1", "n2"]
    assert allocation.gpus == 12
    assert not allocation.problems()


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        ((), "has no node"),
        ((Node(name="a", address="a"), Node(name="a", address="b")), "names node a twice"),
        ((Node(name="a", address="a", gpus=(1, 1)),), "must rise without repeats"),
        ((Node(name="a", address="a", gpus=(0, 1), numa=(0,)),), "1 NUMA domains are given for 2 GPUs"),
        ((Node(name="a", address="a", cpus=0),), "it has 0 cores"),
    ],
)
def test_what_cannot_be_planned_on_is_told(nodes, says):
    (problem,) = Allocation(nodes=nodes).problems()
    assert says in problem
