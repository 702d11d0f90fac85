"""Put units on nodes: GPUs first-fit from the largest chunk down, groups without GPUs where most is free."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from hpcrl.plan.demand import Unit
from hpcrl.plan.nodes import NodeState, by_switch, pick_gpus

Taken = tuple[NodeState, tuple[int, ...], int, float]
Key = tuple[int, float, int]


def pack_gpus(unit: Unit, states: Sequence[NodeState]) -> list[tuple[int, int]] | None:
    """(node index, position in ``node.gpus``) of each GPU of the unit, in the order its replicas take them; or None.

    Nodes are filled one after the other; one whose cores or memory are used up is passed over, which spreads heavy
    groups. Nothing is taken when the unit does not fit.
    """
    for chunk in unit.chunks(max(len(state.node.gpus) for state in states)):
        taken = _pack_chunks(unit, by_switch(states, unit.gpus, chunk), chunk)
        if taken is not None:
            return [(state.index, position) for state, positions, _, _ in taken for position in positions]
    return None


def _pack_chunks(unit: Unit, states: Sequence[NodeState], chunk: int) -> list[Taken] | None:
    taken: list[Taken] = []
    cores = unit.cores(chunk)
    placed = 0
    for state in states:
        if not state.fits_card(unit.gpu_gib):
            continue
        here: set[tuple[str, int]] = set()
        while placed < unit.gpus and len(state.free) >= chunk and state.has_cores(cores):
            replicas = _replicas(unit, placed, chunk) - here
            gib = sum(member.host_gib for member in unit.members for name, _ in replicas if name == member.name)
            positions = pick_gpus(state.free, state.node.numa, chunk)
            if positions is None or not state.has_memory(gib):
                break
            state.take(positions, cores, gib)
            taken.append((state, positions, cores, gib))
            here |= replicas
            placed += chunk
        if placed == unit.gpus:
            return taken
    for state, positions, used, gib in reversed(taken):
        state.give_back(positions, used, gib)
    return None


def _replicas(unit: Unit, first: int, count: int) -> set[tuple[str, int]]:
    # A replica counts its host memory once on each node that it touches.
    return {
        (member.name, replica)
        for member in unit.members
        for replica in range(first // member.gpus, (first + count - 1) // member.gpus + 1)
    }


def pack_cpus(unit: Unit, states: Sequence[NodeState]) -> list[int] | int:
    """Node index of each round of the unit, round i holding replica i of every member that has one.

    Nodes without GPUs come first; within them, the one with most cores left, then most memory. Returns the number of
    rounds that found a place instead when not all did; then nothing is taken.
    """
    rounds = max(member.replicas for member in unit.members)
    heaps = [
        [_key(state) for state in states if not state.node.gpus],
        [_key(state) for state in states if state.node.gpus],
    ]
    by_index = {state.index: state for state in states}
    for heap in heaps:
        heapq.heapify(heap)
    taken: list[Taken] = []
    for number in range(rounds):
        members = [member for member in unit.members if member.replicas > number]
        cores, gib = max(member.cpus for member in members), sum(member.host_gib for member in members)
        state = _roomiest(heaps, by_index, cores, gib)
        if state is None:
            for held, positions, used, memory in reversed(taken):
                held.give_back(positions, used, memory)
            return number
        state.take((), cores, gib)
        taken.append((state, (), cores, gib))
    return [state.index for state, _, _, _ in taken]


def _key(state: NodeState) -> Key:
    return -state.cores, -state.gib, state.index


def _roomiest(heaps: list[list[Key]], by_index: dict[int, NodeState], cores: int, gib: float) -> NodeState | None:
    for heap in heaps:
        passed = []
        found = None
        while heap and found is None:
            key = heapq.heappop(heap)
            state = by_index[key[-1]]
            if key != _key(state):
                # Its key changed when it was last taken from.
                heapq.heappush(heap, _key(state))
            elif not state.has_cores(cores):
                passed.append(key)
                break
            elif not state.has_memory(gib):
                passed.append(key)
            else:
                found = state
                heapq.heappush(heap, key)
        for key in passed:
            heapq.heappush(heap, key)
        if found is not None:
            return found
    return None
