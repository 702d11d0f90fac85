from __future__ import annotations

import socket
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from hpcrl.plan.allocation import Allocation, Node
from hpcrl.plan.plan import Plan
from hpcrl.plan.ports import candidates
from hpcrl.run.rendezvous import Rendezvous
from hpcrl.supervise.claim import PortClaims
from hpcrl.supervise.gather import PlanMismatch, agree, describe_slot, gather_allocation, merge_reports


def whole(name: str, gpus: int) -> Allocation:
    node = Node(name=name, address="127.0.0.1", gpus=tuple(range(gpus)), numa=tuple(gpu // 2 for gpu in range(gpus)) or None)
    return Allocation(nodes=(node,), cpus_shared=True)


def test_the_slots_of_all_nodes_make_the_allocation_again():
    reports = [describe_slot(whole(name, 4), "r", rank) for name in ("n0", "n1") for rank in range(4)]
    merged = merge_reports(reports)
    assert [node.name for node in merged.nodes] == ["n0", "n1"]
    assert all(node.gpus == (0, 1, 2, 3) and node.numa == (0, 0, 1, 1) for node in merged.nodes)
    assert len(merged.slots) == 8
    assert merged.cpus_shared


def test_a_node_without_gpus_is_one_slot():
    merged = merge_reports([describe_slot(whole("n0", 0), "r", 0)])
    assert [slot.gpu for slot in merged.slots] == [None]


def test_the_first_slot_of_a_node_reports_busy_ports():
    block = candidates("r", 1, [whole("n0", 0).nodes[0].ephemeral])[0]
    with socket.create_server(("127.0.0.1", block[0] + 7)):
        merged = merge_reports([describe_slot(whole("n0", 2), "r", 0), describe_slot(whole("n0", 2), "r", 1)])
    assert block in merged.nodes[0].busy


def test_what_another_run_claims_is_busy_before_it_listens():
    block = candidates("r", 1, [whole("n0", 0).nodes[0].ephemeral])[0]
    mine, another = PortClaims("r"), PortClaims("another")
    another.claim([block])
    try:
        assert block in describe_slot(whole("n0", 0), "r", 0, mine).nodes[0].busy
        another.close()
        assert block not in describe_slot(whole("n0", 0), "r", 0, mine).nodes[0].busy
    finally:
        mine.close()
        another.close()


def test_every_slot_gathers_the_same(tmp_path: Path):
    found: dict[int, Allocation] = {}

    def ignite(slot: int) -> None:
        report = describe_slot(whole("n0", 3), "r", slot)
        found[slot] = gather_allocation(Rendezvous(tmp_path, "r"), report, slot=slot, slots=3, seconds=20)

    threads = [threading.Thread(target=ignite, args=(slot,)) for slot in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[1] == found[2]
    assert len(found[0].slots) == 3


def test_different_plans_are_refused_naming_both(tmp_path: Path):
    plan = Plan("r", "recipe", whole("n0", 2), (10240, 10496), ())
    other = replace(plan, recipe="edited meanwhile")
    errors: list[str] = []

    def ignite(slot: int, mine: Plan) -> None:
        with pytest.raises(PlanMismatch) as caught:
            agree(Rendezvous(tmp_path, "r"), mine, slot=slot, slots=2, seconds=20)
        errors.append(str(caught.value))

    threads = [threading.Thread(target=ignite, args=(slot, mine)) for slot, mine in enumerate((plan, other))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 2
    assert all(plan.hash[:16] in error and other.hash[:16] in error for error in errors)


def test_equal_plans_go_on(tmp_path: Path):
    plan = Plan("r", "recipe", whole("n0", 1), (10240, 10496), ())
    agree(Rendezvous(tmp_path, "r"), plan, slot=0, slots=1, seconds=5)
