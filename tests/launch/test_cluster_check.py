from __future__ import annotations

import pytest

from hpcrl.launch.cluster_check import cluster_problems
from hpcrl.launch.layout import Component, Layout
from hpcrl.launch.site import Site
from hpcrl.launch.slurm_text import NodeKind, Partition


def partition(name: str, **facts) -> Partition:
    given = {
        "state": "UP",
        "is_default": False,
        "nodes": 6,
        "max_nodes": None,
        "max_minutes": None,
        "accounts": None,
        "qos": None,
    }
    return Partition(name=name, **{**given, **facts})


PARTITIONS = {
    "main": partition("main", is_default=True),
    "short": partition("short", max_minutes=10, max_nodes=2, accounts=frozenset({"red"}), qos=frozenset({"normal"})),
    "closed": partition("closed", state="DOWN"),
}
NODES = [NodeKind(partition=name, count=6, cpus=32, memory_mb=64_000, gpus=4) for name in PARTITIONS]


def problems(*, nodes: int = 1, minutes: int = 5, site: Site | None = None, **component) -> list[str]:
    given = {"gpus_per_node": 2, "cpus_per_node": 8, "memory_gib": 8.0, "partition": "main", **component}
    layout = Layout(components=(Component(name="all", groups=("a",), nodes=nodes, **given),), no_kill=False, minutes=minutes)
    return list(cluster_problems(layout, site or Site(), PARTITIONS, NODES))


def test_what_fits_is_no_problem():
    assert problems() == []
    assert problems(partition="") == []
    assert problems(partition="short", nodes=2, minutes=10, site=Site(account="red", qos="normal")) == []


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"partition": "mian"}, "there is no partition 'mian' on this cluster; nearest: main"),
        ({"partition": "closed"}, "partition closed is down"),
        ({"partition": "short", "minutes": 11}, "--time asks for 11 minutes and partition short allows 10"),
        ({"partition": "short", "nodes": 3}, "component all asks for 3 nodes and partition short gives at most 2"),
        ({"nodes": 7}, "component all asks for 7 nodes and partition main gives at most 6"),
        ({"partition": "short", "site": Site(account="blue")}, "takes no jobs of account blue; it takes red"),
        ({"partition": "short", "site": Site(qos="high")}, "takes no jobs of QOS high; it takes normal"),
        ({"gpus_per_node": 5}, "asks for 1 nodes with 5 GPUs, 8 cores and 8 GiB, and partition main has 0 such"),
        ({"memory_gib": 63.0}, "and partition main has 0 such"),
    ],
)
def test_what_does_not_fit_is_said(asked: dict, said: str):
    (problem,) = problems(**asked)
    assert said in problem


def test_one_partition_of_several_is_enough():
    assert problems(partition="closed,main") == []
    assert "closed is down" in problems(partition="closed,nix")[0]


def test_without_a_default_a_partition_must_be_named():
    layout = Layout(
        components=(
            Component(name="all", groups=("a",), nodes=1, gpus_per_node=0, cpus_per_node=1, memory_gib=0.0, partition=""),
        ),
        no_kill=False,
        minutes=5,
    )
    (problem,) = cluster_problems(layout, Site(), {"short": PARTITIONS["short"]}, NODES)
    assert "give --partition" in problem
