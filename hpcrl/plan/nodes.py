"""What is left of each node while groups are placed on it, and which of its GPUs go well together."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hpcrl.plan.allocation import Node

# Sums of watermarks such as 0.1 GiB are not exact.
_SLACK_GIB = 1e-6


class NodeState:
    """One node during placement.

    Attributes:
        free: positions in ``node.gpus`` that nobody has, rising.
        cores: cores left; may fall below 0 where cores may be shared.
        gib: host memory left [GiB]; infinite where the node's memory is not known.
    """

    __slots__ = ("_shared", "cores", "free", "gib", "index", "node")

    def __init__(self, index: int, node: Node, cpus_shared: bool) -> None:
        self.index, self.node = index, node
        self.free = list(range(len(node.gpus)))
        self._shared = cpus_shared
        self.cores = node.cpus
        self.gib = node.memory_gib or math.inf

    def fits_card(self, gpu_gib: float) -> bool:
        """Whether a watermark fits the node's GPUs, as far as their memory is known."""
        return not self.node.gpu_memory_gib or gpu_gib <= self.node.gpu_memory_gib

    def has_cores(self, cores: int) -> bool:
        """Whether so many cores are left, or cores may be shared."""
        return self._shared or cores <= self.cores

    def has_memory(self, gib: float) -> bool:
        """Whether so much host memory is left, as far as it is known."""
        return gib <= self.gib + _SLACK_GIB

    def take(self, positions: Sequence[int], cores: int, gib: float) -> None:
        """Take GPUs, cores and memory."""
        taken = set(positions)
        self.free = [position for position in self.free if position not in taken]
        self.cores -= cores
        self.gib -= gib

    def give_back(self, positions: Sequence[int], cores: int, gib: float) -> None:
        """Undo :meth:`take`."""
        self.free = sorted([*self.free, *positions])
        self.cores += cores
        self.gib += gib


def pick_gpus(free: Sequence[int], numa: Sequence[int] | None, size: int) -> tuple[int, ...] | None:
    """So many free positions that lie best together, or None: fewest NUMA domains, then fewest gaps, then the lowest.

    Args:
        numa: domain of each position of the node; None = not known.
    """
    if len(free) < size:
        return None
    if size == 1 or len(free) == size:
        return tuple(free[:size])
    pools = [list(free)]
    if numa is not None:
        pools += [[position for position in free if numa[position] == domain] for domain in sorted(set(numa))]
    windows = [tuple(pool[start : start + size]) for pool in pools for start in range(len(pool) - size + 1)]

    def cost(window: tuple[int, ...]) -> tuple[int, int, int]:
        domains = len({numa[position] for position in window}) if numa is not None else 1
        return domains, window[-1] - window[0], window[0]

    return min(windows, key=cost)


def by_switch(states: Sequence[NodeState], gpus: int, chunk: int) -> list[NodeState]:
    """Nodes in the order in which a unit of so many GPUs fills them.

    The smallest switch that holds the whole unit comes first, so that it stays under one; else the largest. Within a
    switch, and where switches are not known, the order of the allocation holds.
    """
    switches: dict[str | None, list[NodeState]] = {}
    for state in states:
        switches.setdefault(state.node.switch, []).append(state)
    if len(switches) == 1:
        return list(states)
    room = {name: sum(len(state.free) // chunk * chunk for state in held) for name, held in switches.items()}
    order = sorted(switches, key=lambda name: (-room[name], switches[name][0].index))
    whole = [name for name in order if room[name] >= gpus]
    if whole:
        best = min(whole, key=lambda name: (room[name], switches[name][0].index))
        order.remove(best)
        order.insert(0, best)
    return [state for name in order for state in switches[name]]
