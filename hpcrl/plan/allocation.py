"""The machines that a run was given: nodes, their GPUs, cores and memory; and the slots that its ignitors sit on."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hpcrl.run.errors import CheckFailed

EPHEMERAL = (32768, 60999)


@dataclass(frozen=True, kw_only=True)
class Node:
    """One node of the allocation.

    Attributes:
        address: what other nodes reach it by. Nodes that share an address share its ports.
        gpus: indexes of the GPUs that the run may use on this node, rising.
        gpu_memory_gib: memory of each GPU [GiB]; 0 = not known, then GPU-memory watermarks are not checked.
        cpus: cores that the run may use.
        memory_gib: host memory that the run may use [GiB]; 0 = not known, then host-memory watermarks are not checked.
        numa: NUMA domain of each GPU, in the order of ``gpus``; None = not known.
        switch: name of the network switch that the node hangs on; None = not known.
        ephemeral: first and last port that the kernel hands out by itself.
        busy: port ranges (first, end), half open, in which the node found a port taken.
        component: the part of a heterogeneous job that gave the node; empty where a job has one part. Two components may
            share a machine: then it is two nodes of one name and address.
    """

    name: str
    address: str
    gpus: tuple[int, ...] = ()
    gpu_memory_gib: float = 0.0
    cpus: int = 1
    memory_gib: float = 0.0
    numa: tuple[int, ...] | None = None
    switch: str | None = None
    ephemeral: tuple[int, int] = EPHEMERAL
    busy: tuple[tuple[int, int], ...] = ()
    component: str = ""


@dataclass(frozen=True)
class Slot:
    """The place of one ignitor: a GPU of a node, or a whole CPU-only node (``gpu`` is None)."""

    index: int
    node: int
    gpu: int | None


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """Nodes in the scheduler's order, which every process of the run sees alike.

    Attributes:
        cpus_shared: more threads than cores are fine (a run on one's own machine). GPUs are never shared but in a ring.
    """

    nodes: tuple[Node, ...]
    cpus_shared: bool = False

    @classmethod
    def uniform(
        cls,
        *,
        nodes: int,
        gpus_per_node: int,
        cpus: int = 64,
        memory_gib: float = 0.0,
        gpu_memory_gib: float = 0.0,
        cpus_shared: bool = False,
    ) -> Allocation:
        """So many equal nodes ``n0``, ``n1``, …, each its own address."""
        return cls(
            nodes=tuple(
                Node(
                    name=f"n{index}",
                    address=f"n{index}",
                    gpus=tuple(range(gpus_per_node)),
                    gpu_memory_gib=gpu_memory_gib,
                    cpus=cpus,
                    memory_gib=memory_gib,
                )
                for index in range(nodes)
            ),
            cpus_shared=cpus_shared,
        )

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """All slots, node by node: one for each GPU, one for a node without."""
        places: list[tuple[int, int | None]] = []
        for index, node in enumerate(self.nodes):
            places += [(index, gpu) for gpu in node.gpus] or [(index, None)]
        return tuple(Slot(number, node, gpu) for number, (node, gpu) in enumerate(places))

    @cached_property
    def gpus(self) -> int:
        """GPUs of all nodes."""
        return sum(len(node.gpus) for node in self.nodes)

    def problems(self) -> list[str]:
        """What makes this no allocation that can be planned on, a sentence each."""
        if not self.nodes:
            return ["the allocation has no node"]
        found = []
        names = Counter((node.component, node.name) for node in self.nodes)
        found += [f"the allocation names node {name} twice" for (_, name), count in names.items() if count > 1]
        for node in self.nodes:
            if list(node.gpus) != sorted(set(node.gpus)):
                found.append(f"node {node.name}: GPU indexes {list(node.gpus)} must rise without repeats")
            if node.numa is not None and len(node.numa) != len(node.gpus):
                found.append(f"node {node.name}: {len(node.numa)} NUMA domains are given for {len(node.gpus)} GPUs")
            if node.cpus < 1:
                found.append(f"node {node.name}: it has {node.cpus} cores for this run; it needs at least 1")
        return found

    def to_json(self) -> dict[str, Any]:
        """JSON-like; :meth:`from_json` gives an equal allocation back."""
        return {
            "cpus_shared": self.cpus_shared,
            "nodes": [
                {f.name: getattr(node, f.name) for f in dataclasses.fields(Node) if f.name != "component" or node.component}
                for node in self.nodes
            ],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Allocation:
        """An allocation from :meth:`to_json`.

        Raises:
            CheckFailed: the value is no allocation.
        """
        try:
            nodes = tuple(Node(**{key: _tuples(item) for key, item in node.items()}) for node in value["nodes"])
            return cls(nodes=nodes, cpus_shared=value["cpus_shared"])
        except (KeyError, TypeError, AttributeError) as error:
            raise CheckFailed([f"no allocation: {error!r} in {json.dumps(value, default=str)[:200]}"]) from error


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list | tuple) else value
