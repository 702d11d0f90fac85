"""The fewest nodes on which groups can be placed, and the least of each node that they need there. Asks the planner itself."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hpcrl.launch.site import NodeShape
from hpcrl.plan.allocation import Allocation
from hpcrl.plan.declarations import QUEUE
from hpcrl.plan.demand import Unit, units_of
from hpcrl.plan.placement import Placed, place
from hpcrl.recipe import Recipe
from hpcrl.run.errors import CheckFailed

# For the supervisor, the data plane's controller and the tracker, on the first component's nodes.
LEADER_CORES = 2


@dataclass(frozen=True)
class Size:
    """Equal nodes; ``memory_gib`` 0 = not stated."""

    nodes: int
    gpus: int
    cpus: int
    memory_gib: float


def cut(recipe: Recipe, groups: Iterable[str]) -> Recipe:
    """The recipe with some of its groups and the rings among them; good for placement only."""
    names = set(groups)
    return dataclasses.replace(
        recipe,
        groups={name: group for name, group in recipe.groups.items() if name in names},
        rings=tuple(ring for ring in recipe.rings if names >= set(ring.members)),
    )


def size_of(recipe: Recipe, shape: NodeShape, *, nodes: int | None = None, spare_cores: int = 0, whole: bool = False) -> Size:
    """The smallest equal nodes for all groups of a recipe.

    Args:
        shape: the most that a node may give.
        nodes: so many, if given; else the fewest.
        spare_cores: cores of each node to leave free where the shape has them.
        whole: nodes are taken as they are, whatever is needed of them.

    Raises:
        CheckFailed: the groups do not fit such nodes, or not so many.
    """
    most = shape
    if not shape.cpus:
        tasks = max(1, shape.gpus)
        most = dataclasses.replace(shape, cpus=math.ceil((_all_cores(recipe) + spare_cores) / tasks) * tasks)
    cpus = _whole(most.cpus, most.gpus)
    needed = nodes or _fewest_nodes(recipe, most)
    _place(recipe, needed, most.gpus, cpus, most)
    if whole:
        return Size(needed, most.gpus, cpus, 0.0)
    gpus = _least(0, most.gpus, lambda count: _fits(recipe, needed, count, _whole(most.cpus, count), most))
    tasks = max(1, gpus)
    cpus = tasks * _least(1, most.cpus // tasks, lambda count: _fits(recipe, needed, gpus, tasks * count, most))
    placed = _place(recipe, needed, gpus, cpus, most)
    cpus = min(math.ceil((cpus + spare_cores) / tasks) * tasks, _whole(most.cpus, gpus))
    return Size(needed, gpus, cpus, _memory(recipe, placed, Size(needed, gpus, cpus, 0.0), most))


def idle_nodes(placed: Iterable[Placed], nodes: int) -> int:
    """Nodes that hold no role."""
    return nodes - len({item.node for item in placed if item.group != QUEUE})


def _fewest_nodes(recipe: Recipe, shape: NodeShape) -> int:
    with_gpus, without = units_of(recipe)
    pieces = sum(_pieces(unit, shape.gpus) for unit in with_gpus)
    pieces += sum(max(member.replicas for member in unit.members) for unit in without)
    most = max(1, pieces)
    cpus = _whole(shape.cpus, shape.gpus)
    # A node for each piece: what does not fit there fits nowhere, and the planner says why.
    _place(recipe, most, shape.gpus, cpus, shape)
    return _least(1, most, lambda nodes: _fits(recipe, nodes, shape.gpus, cpus, shape))


def _pieces(unit: Unit, gpus: int) -> int:
    sizes = unit.chunks(gpus)
    return unit.gpus // sizes[-1] if sizes else 1


def _least(low: int, high: int, fits: Callable[[int], bool]) -> int:
    # The highest is known to fit.
    while low < high:
        middle = (low + high) // 2
        if fits(middle):
            high = middle
        else:
            low = middle + 1
    return high


def _whole(cpus: int, gpus: int) -> int:
    # Each ignitor of a node is asked for with the same number of cores.
    tasks = max(1, gpus)
    return max(cpus // tasks * tasks, tasks)


def _fits(recipe: Recipe, nodes: int, gpus: int, cpus: int, shape: NodeShape) -> bool:
    try:
        _place(recipe, nodes, gpus, cpus, shape)
    except CheckFailed:
        return False
    return True


def _place(recipe: Recipe, nodes: int, gpus: int, cpus: int, shape: NodeShape) -> list[Placed]:
    allocation = Allocation.uniform(
        nodes=nodes, gpus_per_node=gpus, cpus=cpus, memory_gib=shape.memory_gib, gpu_memory_gib=shape.gpu_memory_gib
    )
    return place(recipe, allocation)


def _memory(recipe: Recipe, placed: list[Placed], size: Size, shape: NodeShape) -> float:
    """The stated memory of the fullest node, and at least the node's share of cores and GPUs [GiB]."""
    held: dict[int, set[tuple[str, int]]] = {}
    for item in placed:
        if item.group != QUEUE:
            held.setdefault(item.node, set()).add((item.group, item.replica))
    need = {name: group.resources.host_memory_gib for name, group in recipe.groups.items()}
    stated = max((sum(need[group] for group, _ in replicas) for replicas in held.values()), default=0.0)
    if not shape.memory_gib:
        return float(math.ceil(stated))
    share = shape.memory_gib * max(size.cpus / shape.cpus, size.gpus / shape.gpus if shape.gpus else 0.0)
    memory = min(float(math.ceil(max(stated, share))), shape.memory_gib)
    tight = dataclasses.replace(shape, memory_gib=memory)
    return memory if _fits(recipe, size.nodes, size.gpus, size.cpus, tight) else shape.memory_gib


def _all_cores(recipe: Recipe) -> int:
    with_gpus, without = units_of(recipe)
    return sum(member.cpus * member.processes * member.replicas for unit in (*with_gpus, *without) for member in unit.members)
