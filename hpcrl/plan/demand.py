"""What must be placed: units, each a group by itself or a ring whose members share the same GPUs or cores."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from hpcrl.plan.declarations import one_ring
from hpcrl.recipe import Recipe, Role


@dataclass(frozen=True, kw_only=True)
class Member:
    """One group of a unit; its needs are those of one replica, ``cpus`` those of one process."""

    name: str
    replicas: int
    gpus: int
    cpus: int
    host_gib: float
    gpu_gib: float
    process_per_gpu: bool
    process_per_node: bool
    world: bool
    across_nodes: bool

    @property
    def spans(self) -> bool:
        """Whether one replica may be spread over nodes; a single process cannot drive GPUs of two."""
        return self.across_nodes and (self.process_per_gpu or self.process_per_node)

    @property
    def processes(self) -> int:
        """Processes of one replica on one node."""
        return max(1, self.gpus) if self.process_per_gpu else 1

    def cores(self, gpus: int) -> int:
        """Cores of the processes that drive so many GPUs of whole replicas, or of a part of one that spans."""
        return self.cpus * (gpus if self.process_per_gpu else max(1, gpus // self.gpus))


@dataclass(frozen=True)
class Unit:
    """Groups that are placed together, in the order of their names; a lone group is a unit of one.

    Attributes:
        rest_gib: what a member that does not have the ring's token keeps on each card [GiB]; None = there is no token.
    """

    name: str
    members: tuple[Member, ...]
    rest_gib: float | None = None

    @cached_property
    def gpus(self) -> int:
        """GPUs of the whole unit."""
        return self.members[0].replicas * self.members[0].gpus

    @cached_property
    def gpu_gib(self) -> float:
        """Watermark on each card [GiB]: of the largest member and what the others keep, or without a token of all together."""
        if self.rest_gib is None:
            return sum(member.gpu_gib for member in self.members)
        largest = max(member.gpu_gib for member in self.members)
        return largest + (len(self.members) - 1) * self.rest_gib if largest else 0.0

    @cached_property
    def chunk(self) -> int:
        """GPUs that must lie on one node together, so that no replica is torn that may not be."""
        whole = [member.gpus for member in self.members if not member.spans]
        return math.lcm(*whole) if whole else math.lcm(*(member.gpus for member in self.members))

    def chunks(self, most: int) -> list[int]:
        """Chunk sizes to try where a node has at most ``most`` GPUs, the best first."""
        if any(not member.spans for member in self.members):
            return [self.chunk] if self.chunk <= most else []
        common = math.gcd(*(member.gpus for member in self.members))
        sizes = [size for size in range(1, min(common, most) + 1) if common % size == 0]
        return sorted({*sizes, *([self.chunk] if self.chunk <= most else [])}, reverse=True)

    def cores(self, gpus: int) -> int:
        """Cores for a chunk of so many GPUs. Members take turns, so the largest counts."""
        return max(member.cores(gpus) for member in self.members)


def units_of(recipe: Recipe) -> tuple[list[Unit], list[Unit]]:
    """Units with GPUs and units without, each in the order of placement: the hardest first, then by name.

    Groups and rings whose declarations are wrong are left out; others report those.
    """
    members = {name: _member(recipe, name) for name in sorted(recipe.groups) if _is_sound(recipe, name)}
    units = []
    left = dict(members)
    for ring in sorted(recipe.rings, key=lambda ring: ring.name):
        inside = [left.pop(name) for name in sorted(set(ring.members)) if name in left]
        if not one_ring(ring, recipe) and len(inside) == len(ring.members):
            units.append(Unit(ring.name, tuple(inside), ring.rest_gib if ring.fallback else None))
    units += [Unit(member.name, (member,)) for member in left.values()]
    with_gpus = [unit for unit in units if unit.gpus]
    without = [unit for unit in units if not unit.gpus]
    with_gpus.sort(key=lambda unit: (-unit.chunk, -_host_gib_per_gpu(unit), -unit.cores(unit.chunk), unit.name))
    without.sort(key=lambda u: (-sum(m.host_gib for m in u.members), -max(m.cpus for m in u.members), u.name))
    return with_gpus, without


def _host_gib_per_gpu(unit: Unit) -> float:
    return sum(member.host_gib / member.gpus for member in unit.members)


def _is_sound(recipe: Recipe, name: str) -> bool:
    group = recipe.groups[name]
    need = group.resources
    if not isinstance(group.role, Role):
        return False
    sound = group.replicas >= 1 and need.cpus >= 1 and need.gpus >= 0
    return sound and need.host_memory_gib >= 0 and need.gpu_memory_gib >= 0


def _member(recipe: Recipe, name: str) -> Member:
    group = recipe.groups[name]
    need = group.resources
    return Member(
        name=name,
        replicas=group.replicas,
        gpus=need.gpus,
        cpus=need.cpus,
        host_gib=need.host_memory_gib,
        gpu_gib=need.gpu_memory_gib,
        process_per_gpu=group.role.process_per_gpu,
        process_per_node=group.role.process_per_node,
        world=group.role.world,
        across_nodes=need.across_nodes,
    )
