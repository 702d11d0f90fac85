"""What can be refused before placing anything: needs that no node, or not all nodes together, can meet."""

from __future__ import annotations

from collections.abc import Sequence

from hpcrl.plan.allocation import Allocation, Node
from hpcrl.plan.demand import Unit


def feasibility_problems(with_gpus: Sequence[Unit], without: Sequence[Unit], allocation: Allocation) -> list[str]:
    """A sentence for each need that cannot be met, with its numbers and what to change."""
    problems = _too_few_gpus(with_gpus, allocation)
    for unit in with_gpus:
        problems += _gpu_unit_problems(unit, allocation)
    for unit in without:
        problems += _node_problems(unit, unit_cores(unit), unit_gib(unit, 0), allocation.nodes, allocation.cpus_shared)
    problems += _too_little_in_all([*with_gpus, *without], allocation)
    return problems


def unit_cores(unit: Unit) -> int:
    """Cores that one chunk, or one round, of a unit needs on a node."""
    return unit.cores(unit.chunk) if unit.gpus else max(member.cpus for member in unit.members)


def unit_gib(unit: Unit, chunk: int) -> float:
    """Host memory that a chunk of so many GPUs, or one round without GPUs, needs on a node [GiB]."""
    return sum(member.host_gib * (max(1, chunk // member.gpus) if member.gpus else 1) for member in unit.members)


def unit_name(unit: Unit) -> str:
    """``group x`` or ``ring x (a, b)``."""
    if len(unit.members) == 1:
        return f"group {unit.name}"
    return f"ring {unit.name} ({', '.join(member.name for member in unit.members)})"


def _too_few_gpus(units: Sequence[Unit], allocation: Allocation) -> list[str]:
    need = sum(unit.gpus for unit in units)
    have = allocation.gpus
    if need <= have:
        return []
    asked = ", ".join(
        " in turn with ".join(f"{m.name} {m.replicas * m.gpus} ({m.replicas} x {m.gpus})" for m in unit.members)
        for unit in units
    )
    per_node = max(len(node.gpus) for node in allocation.nodes)
    ways = []
    if per_node:
        more = -(-(need - have) // per_node)
        ways.append(f"add {more} node{'s' if more > 1 else ''} of {per_node} GPUs (--nodes {len(allocation.nodes) + more})")
    for unit in sorted(units, key=lambda unit: (-unit.gpus, unit.name)):
        replicas = (have - (need - unit.gpus)) // unit.members[0].gpus
        if len(unit.members) == 1 and replicas >= 1:
            ways.append(f"lower it (--set {unit.name}.replicas={replicas})")
            break
    hint = "; " + ", or ".join(ways) if ways else ""
    nodes = len(allocation.nodes)
    asks = f"{need} GPU{'s are' if need > 1 else ' is'} asked for"
    return [f"{asks} and {nodes} node{'s have' if nodes > 1 else ' has'} {have}: {asked}{hint}"]


def _gpu_unit_problems(unit: Unit, allocation: Allocation) -> list[str]:
    problems = []
    most = max(len(node.gpus) for node in allocation.nodes)
    sizes = unit.chunks(most)
    if most and not sizes:
        problems.append(_too_wide(unit, most))
    nodes = [node for node in allocation.nodes if node.gpus]
    known = [node.gpu_memory_gib for node in nodes]
    if known and all(known) and unit.gpu_gib > max(known):
        problems.append(
            f"{unit_name(unit)}: gpu_memory_gib is {_gpu_sum(unit)} and the largest GPU has {max(known):g} GiB; "
            + (
                "have its members take turns (a ring with a fallback), "
                if len(unit.members) > 1 and unit.rest_gib is None
                else ""
            )
            + "use more GPUs for each replica, or a smaller model or batch"
        )
    if sizes:
        chunk = sizes[-1]
        problems += _node_problems(unit, unit.cores(chunk), unit_gib(unit, chunk), nodes, allocation.cpus_shared)
    return problems


def _gpu_sum(unit: Unit) -> str:
    """The watermark of a card, and what it is made of."""
    if len(unit.members) == 1:
        return f"{unit.gpu_gib:g}"
    if unit.rest_gib is None:
        return f"{unit.gpu_gib:g} together (" + ", ".join(f"{member.name} {member.gpu_gib:g}" for member in unit.members) + ")"
    largest = max(unit.members, key=lambda member: member.gpu_gib)
    others = len(unit.members) - 1
    return f"{unit.gpu_gib:g} ({largest.name} {largest.gpu_gib:g}, and {unit.rest_gib:g} that each of {others} others keeps)"


def _too_wide(unit: Unit, most: int) -> str:
    alone = next(iter(unit.members))
    if len(unit.members) > 1:
        sizes = ", ".join(f"{member.name} {member.gpus}" for member in unit.members)
        return (
            f"{unit_name(unit)}: replicas of {sizes} GPUs only line up on {unit.chunk} GPUs of one node, and the largest "
            f"has {most}; use sizes that divide each other, at most {most}"
        )
    if alone.across_nodes:
        return (
            f"{unit_name(unit)}: one process drives {alone.gpus} GPUs and the largest node has {most}; across_nodes needs a "
            "role with a process for each GPU or each node (process_per_gpu, process_per_node)"
        )
    return (
        f"{unit_name(unit)}: a replica needs {alone.gpus} GPUs on one node and the largest has {most}; "
        f"lower it (--set {unit.name}.gpus={most})"
        + (
            f" or let it span nodes (--set {unit.name}.across_nodes=true)"
            if alone.process_per_gpu or alone.process_per_node
            else ""
        )
    )


def _node_problems(unit: Unit, cores: int, gib: float, nodes: Sequence[Node], cpus_shared: bool) -> list[str]:
    problems = []
    if nodes and not cpus_shared and cores > max(node.cpus for node in nodes):
        problems.append(
            f"{unit_name(unit)}: it needs {cores} cores together on one node and the largest has "
            f"{max(node.cpus for node in nodes)}; lower the group's cpus"
        )
    memory = [node.memory_gib for node in nodes]
    if memory and all(memory) and gib > max(memory):
        problems.append(
            f"{unit_name(unit)}: it needs {gib:g} GiB of host memory together on one node and the largest has "
            f"{max(memory):g}; lower the group's host_memory_gib or use larger nodes"
        )
    return problems


def _too_little_in_all(units: Sequence[Unit], allocation: Allocation) -> list[str]:
    problems = []
    gib = {unit_name(unit): sum(member.replicas * member.host_gib for member in unit.members) for unit in units}
    memory = [node.memory_gib for node in allocation.nodes]
    if all(memory) and sum(gib.values()) > sum(memory):
        listed = ", ".join(f"{name} {need:g}" for name, need in gib.items() if need)
        problems.append(
            f"{sum(gib.values()):g} GiB of host memory are asked for and all nodes together have {sum(memory):g}: {listed}; "
            "add nodes or lower replicas"
        )
    cores = {unit_name(unit): _all_cores(unit) for unit in units}
    have = sum(node.cpus for node in allocation.nodes)
    if not allocation.cpus_shared and sum(cores.values()) > have:
        listed = ", ".join(f"{name} {need}" for name, need in cores.items())
        problems.append(
            f"{sum(cores.values())} cores are asked for and all nodes together have {have}: {listed}; "
            "add nodes, lower replicas, or lower cpus"
        )
    return problems


def _all_cores(unit: Unit) -> int:
    if unit.gpus:
        return max(member.cpus * member.processes * member.replicas for member in unit.members)
    rounds = max(member.replicas for member in unit.members)
    return sum(max(m.cpus for m in unit.members if m.replicas > number) for number in range(rounds))
