"""From what each ignitor knows of its own slot to an allocation that all of them see alike, and to one plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hpcrl.plan.allocation import Allocation, Node
from hpcrl.plan.plan import Plan
from hpcrl.plan.ports import candidates, probe_busy
from hpcrl.run.errors import HpcrlError, host
from hpcrl.run.rendezvous import Rendezvous
from hpcrl.supervise.claim import PortClaims

# Blocks that a node looks at before the plan is made; the plan takes the first that is free everywhere.
PROBED_BLOCKS = 4


class PlanMismatch(HpcrlError):
    """Two ignitors derived different plans from the same reports."""


def describe_slot(here: Allocation, run_id: str, local_rank: int, claims: PortClaims | None = None) -> Allocation:
    """This host as one of its ignitors reports it: the ignitor's own GPU, and from the first one the busy ports.

    Args:
        claims: get the blocks that were looked at.
    """
    (node,) = here.nodes
    if node.gpus:
        numa = node.numa[local_rank : local_rank + 1] if node.numa else None
        node = replace(node, gpus=node.gpus[local_rank : local_rank + 1], numa=numa)
    here = replace(here, nodes=(node,))
    return look_at_ports(here, run_id, claims) if local_rank == 0 else here


def look_at_ports(here: Allocation, run_id: str, claims: PortClaims | None = None) -> Allocation:
    """This host with those blocks told busy that the run would take first and that somebody else has.

    Args:
        claims: get the blocks that were looked at.
    """
    (node,) = here.nodes
    blocks = candidates(run_id, PROBED_BLOCKS, [node.ephemeral])
    claimed = claims.claim(blocks) if claims is not None else ()
    busy = {*claimed, *probe_busy(node.address, blocks)}
    return replace(here, nodes=(replace(node, busy=tuple(sorted(busy))),))


def merge_reports(reports: Sequence[Allocation]) -> Allocation:
    """One allocation from the reports of all slots in their order; slots of a node stand together."""
    nodes: dict[tuple[str, str], Node] = {}
    for report in reports:
        (node,) = report.nodes
        held = nodes.get((node.component, node.name))
        if held is not None:
            numa = held.numa + node.numa if held.numa is not None and node.numa is not None else None
            node = replace(held, gpus=held.gpus + node.gpus, numa=numa, busy=held.busy or node.busy)
        nodes[node.component, node.name] = node
    return Allocation(nodes=tuple(nodes.values()), cpus_shared=all(report.cpus_shared for report in reports))


def gather_allocation(rendezvous: Rendezvous, report: Allocation, *, slot: int, slots: int, seconds: float) -> Allocation:
    """Publish this slot's report and merge those of all.

    Raises:
        DeadlineExceeded: another ignitor did not report in time.
    """
    rendezvous.publish(f"slots/{slot}", report.to_json())
    reports = rendezvous.gather([f"slots/{index}" for index in range(slots)], seconds=seconds)
    return merge_reports([Allocation.from_json(value) for value in reports])


def agree(rendezvous: Rendezvous, plan: Plan, *, slot: int, slots: int, seconds: float) -> None:
    """Go on only if every ignitor derived this plan.

    Raises:
        PlanMismatch: names two hosts and their hashes.
        DeadlineExceeded: another ignitor did not come to a plan in time.
    """
    rendezvous.publish(f"plans/{slot}", {"hash": plan.hash, "host": host()})
    others = rendezvous.gather([f"plans/{index}" for index in range(slots)], seconds=seconds)
    for index, other in enumerate(others):
        if other["hash"] != plan.hash:
            raise PlanMismatch(
                f"slot {slot} on {host()} derived plan {plan.hash[:16]} and slot {index} on {other['host']} derived "
                f"{other['hash'][:16]}, so nothing was started; the code or the recipe differs between the hosts: compare "
                "`hpcrl doctor` on both"
            )
