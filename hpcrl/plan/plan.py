"""The plan of a run: what runs where, with which GPUs and ports. The same on every process that makes it."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from hpcrl.config.codec import recipe_to_json
from hpcrl.plan.allocation import Allocation
from hpcrl.plan.contracts import contract_problems
from hpcrl.plan.loops import loop_problems
from hpcrl.plan.placement import Placed, place
from hpcrl.plan.ports import PORTS_PER_PROCESS, Range, choose_block
from hpcrl.recipe import Recipe
from hpcrl.run.errors import CheckFailed, checked


@dataclass(frozen=True)
class PlannedProcess:
    """One process of the run; :class:`hpcrl.roles.context.Identity` takes its fields of the same names from here.

    Attributes:
        node: name of its node.
        slot: index of the slot whose ignitor starts it.
        gpus: indexes of its GPUs on its node.
        ports: TCP ports on its node for it alone.
        world_address, world_port: where rank 0 of its group's world, or part 0 of its replica, listens for the others; its own
            address and 0 where there are none. The port is none of that process's ``ports``.
        part, parts: which process it is of those, one on each of several nodes, that drive its replica's GPUs together.
    """

    group: str
    replica: int
    rank: int
    world_size: int
    node: str
    slot: int
    cpus: int
    gpus: tuple[int, ...]
    ports: tuple[int, ...]
    address: str
    world_address: str
    world_port: int
    part: int = 0
    parts: int = 1

    @property
    def name(self) -> str:
        """``group.rank``."""
        return f"{self.group}.{self.rank}"

    @property
    def meeting_ports(self) -> tuple[int, ...]:
        """Ports of its node at which others that belong together with it meet."""
        first = self.part == 0 if self.parts > 1 else self.rank == 0
        return (self.world_port,) if self.world_port and first else ()


_FIELDS = tuple(field.name for field in fields(PlannedProcess))


@dataclass(frozen=True)
class Plan:
    """What runs where.

    Attributes:
        recipe: fingerprint of the resolved recipe, so that plans from different recipes differ.
        ports: the run's block of ports (first, end), half open, the same on every node.
        processes: sorted by group and rank; the data plane's are the group ``queue``.
    """

    run_id: str
    recipe: str
    allocation: Allocation
    ports: Range
    processes: tuple[PlannedProcess, ...]

    def on_slot(self, slot: int) -> tuple[PlannedProcess, ...]:
        """The processes that the ignitor of a slot starts."""
        return self._by_slot.get(slot, ())

    def of_group(self, group: str) -> tuple[PlannedProcess, ...]:
        """The processes of a group by rank."""
        return tuple(process for process in self.processes if process.group == group)

    @cached_property
    def hash(self) -> str:
        """SHA-256 of :meth:`to_json`, hexadecimal. Ignitors compare it before they start anything."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """The plan as JSON, one process a line; equal plans give equal text."""
        head = {
            "run_id": self.run_id,
            "recipe": self.recipe,
            "ports": self.ports,
            "allocation": self.allocation.to_json(),
        }
        lines = [json.dumps({name: getattr(process, name) for name in _FIELDS}) for process in self.processes]
        return json.dumps(head)[:-1] + ', "processes": [\n' + ",\n".join(lines) + "\n]}\n"

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan that :meth:`to_json` wrote.

        Raises:
            CheckFailed: the text is no plan.
        """
        try:
            value = json.loads(text)
            processes = tuple(PlannedProcess(**_with_tuples(item)) for item in value["processes"])
            first, end = value["ports"]
            return cls(value["run_id"], value["recipe"], Allocation.from_json(value["allocation"]), (first, end), processes)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckFailed([f"no plan: {error!r}"]) from error

    @cached_property
    def _by_slot(self) -> dict[int, tuple[PlannedProcess, ...]]:
        held: dict[int, list[PlannedProcess]] = {}
        for process in self.processes:
            held.setdefault(process.slot, []).append(process)
        return {slot: tuple(processes) for slot, processes in held.items()}


def check_recipe(recipe: Recipe) -> list[str]:
    """What is wrong with a recipe on any allocation: contracts with the streams, and loops; a sentence each."""
    return contract_problems(recipe) + loop_problems(recipe)


def make_plan(recipe: Recipe, allocation: Allocation, run_id: str, components: Mapping[str, str] | None = None) -> Plan:
    """Place a recipe on an allocation. Pure: equal arguments give an equal plan, whatever the order of mappings.

    Args:
        components: component of each group, where the allocation is of a heterogeneous job.

    Raises:
        CheckFailed: every problem of contracts, loops, placement and ports.
    """
    problems = check_recipe(recipe)
    placed: list[Placed] = []
    block = (0, 0)
    fingerprint = checked(lambda: recipe_fingerprint(recipe), problems) or ""
    try:
        placed = place(recipe, allocation, components)
        block = choose_block(run_id, allocation.nodes, _ports_needed(placed, allocation))
    except CheckFailed as error:
        problems += error.problems
    if problems:
        raise CheckFailed(problems)
    return Plan(run_id, fingerprint, allocation, block, _processes(placed, allocation, block[0]))


def recipe_fingerprint(recipe: Recipe) -> str:
    """SHA-256 of the resolved recipe, hexadecimal; the order of mappings does not count.

    Raises:
        CheckFailed: the recipe cannot be written to JSON.
    """
    text = json.dumps(json.loads(recipe_to_json(recipe)), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _ports_needed(placed: list[Placed], allocation: Allocation) -> int:
    count: Counter[str] = Counter()
    for item in placed:
        # A world meets at a port of its rank 0's node, the parts of a replica at one of their first's.
        count[allocation.nodes[item.node].address] += PORTS_PER_PROCESS + item.first
    return max(count.values())


def _processes(placed: list[Placed], allocation: Allocation, first_port: int) -> tuple[PlannedProcess, ...]:
    # By address, not by node: nodes that share an address share its ports.
    next_port = {node.address: first_port for node in allocation.nodes}
    worlds: dict[tuple[str, int], tuple[str, int]] = {}
    processes = []
    for item in placed:
        node = allocation.nodes[item.node]
        port = next_port[node.address]
        ports = tuple(range(port, port + PORTS_PER_PROCESS))
        next_port[node.address] += PORTS_PER_PROCESS
        # All replicas of a world are one.
        world = (item.group, 0 if item.world else item.replica)
        if item.first:
            worlds[world] = (node.address, next_port[node.address])
            next_port[node.address] += 1
        world_address, world_port = worlds[world] if item.world or item.parts > 1 else (node.address, 0)
        processes.append(
            PlannedProcess(
                group=item.group,
                replica=item.replica,
                rank=item.rank,
                world_size=item.world_size,
                node=node.name,
                slot=item.slot,
                cpus=item.cpus,
                gpus=item.gpus,
                ports=ports,
                address=node.address,
                world_address=world_address,
                world_port=world_port,
                part=item.part,
                parts=item.parts,
            )
        )
    return tuple(processes)


def _with_tuples(item: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in item.items()}
