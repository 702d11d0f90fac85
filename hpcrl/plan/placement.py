"""Which process of which group sits on which node, slot and GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hpcrl.plan.allocation import Allocation
from hpcrl.plan.components import component_problems, part_of, parts_of
from hpcrl.plan.declarations import QUEUE
from hpcrl.plan.demand import Member, Unit, units_of
from hpcrl.plan.feasibility import feasibility_problems, unit_cores, unit_gib, unit_name
from hpcrl.plan.nodes import NodeState
from hpcrl.plan.pack import pack_cpus, pack_gpus
from hpcrl.recipe import Recipe
from hpcrl.run.errors import CheckFailed

# More storage units than this serve no further purpose: rows are small and are cleared as they are trained on.
MAX_STORAGE_UNITS = 8


class Placed(NamedTuple):
    """A process on its node. Node and slot are indexes into the allocation; GPUs are the node's own indexes.

    ``part`` of ``parts``: which process of its replica, where one on each of several nodes drives the GPUs there.
    """

    group: str
    replica: int
    rank: int
    world_size: int
    world: bool
    node: int
    slot: int
    gpus: tuple[int, ...]
    cpus: int
    part: int = 0
    parts: int = 1

    @property
    def first(self) -> bool:
        """Whether others that belong together with it meet at a port of its node."""
        return (self.world and self.rank == 0) or (self.parts > 1 and self.part == 0)


def place(recipe: Recipe, allocation: Allocation, components: Mapping[str, str] | None = None) -> list[Placed]:
    """Every process of every group and of the data plane, sorted by group and rank.

    The data plane is the group ``queue``: rank 0, its desk, on the first slot, and, where there are several nodes, a storage
    unit on each, or on nodes evenly apart where there are many. It mostly
    waits, so its cores are not counted against the nodes'.

    Args:
        components: component of each group, which keeps to that component's nodes; the controller then is on the first
            node without GPUs. None = any group may go to any node.

    Raises:
        CheckFailed: every need that cannot be met.
    """
    problems = allocation.problems()
    if problems:
        raise CheckFailed(problems)
    with_gpus, without = units_of(recipe)
    problems = component_problems([*with_gpus, *without], allocation, components)
    if not problems:
        for part, gpu_units, cpu_units in parts_of(with_gpus, without, allocation, components):
            problems += feasibility_problems(gpu_units, cpu_units, part)
    if problems:
        raise CheckFailed(problems)
    states = [NodeState(index, node, allocation.cpus_shared) for index, node in enumerate(allocation.nodes)]
    placed: list[Placed] = []
    for unit in with_gpus:
        mine = part_of(unit, states, components)
        cards = pack_gpus(unit, mine)
        if cards is None:
            problems.append(_no_room(unit, mine))
            continue
        placed += _on_gpus(unit, cards, allocation)
    for unit in without:
        mine = part_of(unit, states, components)
        nodes = pack_cpus(unit, mine)
        if isinstance(nodes, int):
            problems.append(f"{_no_room(unit, mine)}; {nodes} of its replicas would fit")
            continue
        placed += _without_gpus(unit, nodes)
    if problems:
        raise CheckFailed(problems)
    placed += _data_plane(len(allocation.nodes), _controller_node(allocation, components))
    placed.sort(key=lambda item: (item.group, item.rank))
    return _with_slots(placed, allocation)


def _on_gpus(unit: Unit, cards: Sequence[tuple[int, int]], allocation: Allocation) -> Iterator[Placed]:
    for member in unit.members:
        held: list[tuple[int, int, int, Sequence[tuple[int, int]]]] = []
        for start in range(0, len(cards), member.gpus):
            replica = cards[start : start + member.gpus]
            size = 1 if member.process_per_gpu else _even([node for node, _ in replica])
            pieces = [replica[begin : begin + size] for begin in range(0, member.gpus, size)]
            parts = 1 if member.process_per_gpu else len(pieces)
            held += [(start // member.gpus, number % parts, parts, piece) for number, piece in enumerate(pieces)]
        for rank, (replica_number, part, parts, mine) in enumerate(held):
            node = mine[0][0]
            gpus = tuple(sorted(allocation.nodes[node].gpus[position] for _, position in mine))
            made = _placed(member, replica_number, rank, len(held), node, gpus)
            yield made._replace(part=part, parts=parts)


def _even(nodes: Sequence[int]) -> int:
    """Into pieces of how many, the same for each, GPUs on these nodes are to be cut so that each piece lies on one."""
    count = len(nodes)
    for size in range(count, 0, -1):
        if count % size == 0 and all(len(set(nodes[begin : begin + size])) == 1 for begin in range(0, count, size)):
            return size
    raise ValueError("there are no GPUs")


def _without_gpus(unit: Unit, nodes: Sequence[int]) -> Iterator[Placed]:
    for member in unit.members:
        for replica in range(member.replicas):
            yield _placed(member, replica, replica, member.replicas, nodes[replica], ())


def _placed(member: Member, replica: int, number: int, size: int, node: int, gpus: tuple[int, ...]) -> Placed:
    return Placed(member.name, replica, number, size, member.world, node, -1, gpus, member.cpus)


def _controller_node(allocation: Allocation, components: Mapping[str, str] | None) -> int:
    if components is None:
        return 0
    return next((index for index, node in enumerate(allocation.nodes) if not node.gpus), 0)


def _data_plane(nodes: int, controller: int) -> Iterator[Placed]:
    # On one node all rows lie in its shared memory.
    units = min(nodes, MAX_STORAGE_UNITS) if nodes > 1 else 0
    for rank, node in enumerate([controller, *(unit * nodes // units for unit in range(units))]):
        yield Placed(QUEUE, rank, rank, units + 1, False, node, -1, (), 1)


def _with_slots(placed: Sequence[Placed], allocation: Allocation) -> list[Placed]:
    of_node: dict[int, list[int]] = {}
    of_gpu: dict[tuple[int, int | None], int] = {}
    for spot in allocation.slots:
        of_node.setdefault(spot.node, []).append(spot.index)
        of_gpu[spot.node, spot.gpu] = spot.index
    load = [0] * len(allocation.slots)
    chosen = [_fixed_slot(item, of_gpu, of_node) for item in placed]
    for index in chosen:
        if index is not None:
            load[index] += 1
    settled = []
    for item, slot in zip(placed, chosen, strict=True):
        if slot is None:
            slot = min(of_node[item.node], key=lambda index: (load[index], index))
            load[slot] += 1
        settled.append(item._replace(slot=slot))
    return settled


def _fixed_slot(item: Placed, of_gpu: dict[tuple[int, int | None], int], of_node: dict[int, list[int]]) -> int | None:
    if item.gpus:
        return of_gpu[item.node, item.gpus[0]]
    return of_node[item.node][0] if item.group == QUEUE and item.rank == 0 else None


def _no_room(unit: Unit, states: Sequence[NodeState]) -> str:
    chunk = unit.chunk if unit.gpus else 0
    wants = [f"{unit_cores(unit)} cores"]
    if unit.gpus:
        wants.insert(0, f"{chunk} GPUs")
    if any(member.host_gib for member in unit.members):
        wants.append(f"{unit_gib(unit, chunk):g} GiB")
    pieces = unit.gpus // chunk if chunk else max(member.replicas for member in unit.members)
    best = sorted(states, key=lambda state: (-len(state.free), -state.cores, -state.gib, state.index))[:4]
    left = ", ".join(
        f"{state.node.name} {len(state.free)} GPUs {state.cores} cores"
        + (f" {state.gib:.4g} GiB" if state.node.memory_gib else "")
        for state in best
    )
    return (
        f"{unit_name(unit)} finds no room for {pieces} x ({', '.join(wants)}), each on one node, beside the groups placed "
        f"before it; most is left on: {left}; add nodes, or lower its replicas, cpus or memory"
    )
