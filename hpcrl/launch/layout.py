"""What a run asks of Slurm: one allocation of equal nodes, or a heterogeneous job of several components."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from hpcrl.plan.allocation import Allocation, Node
from hpcrl.run.errors import CheckFailed


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a person asks for beside the recipe and the site.

    Attributes:
        nodes: that hold roles, spares not counted; None = as many as are needed.
        gpus_per_node: the most GPUs to use of a node; None = what the site's nodes have.
        time: limit as Slurm writes it; empty = the site's.
        layout: ``auto`` takes a single allocation unless that would hold more GPUs than components do.
        survive_node_loss: the job goes on when Slurm takes a node away.
        spares: idle nodes in the allocation that replace lost ones; they imply ``survive_node_loss``.
        partition: for all components; empty = the site's.
        partitions: for single components of a heterogeneous job, by name.
        nodes_of: nodes of single components of a heterogeneous job, by name; others take as many as they need.
    """

    nodes: int | None = None
    gpus_per_node: int | None = None
    time: str = ""
    layout: Literal["auto", "het", "single"] = "auto"
    survive_node_loss: bool = False
    spares: int = 0
    partition: str = ""
    partitions: Mapping[str, str] = field(default_factory=dict)
    nodes_of: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Component:
    """Equal nodes of a job that are asked for together.

    Attributes:
        nodes: all of them, spares among them.
        cpus_per_node: a multiple of the node's ignitors (one for each GPU, or one).
        memory_gib: host memory of each node [GiB]; 0 = not stated, or whole nodes.
    """

    name: str
    groups: tuple[str, ...]
    nodes: int
    gpus_per_node: int
    cpus_per_node: int
    memory_gib: float
    partition: str
    spares: int = 0

    @property
    def ignitors_per_node(self) -> int:
        """One for each GPU, or one."""
        return max(1, self.gpus_per_node)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The components in Slurm's order; the batch script runs on the first one's first node.

    Attributes:
        no_kill: the job outlives the loss of a node. Only ever with a single component: Slurm requeues the leader of a
            heterogeneous job alone when it has one node, and the job then never starts again.
        minutes: time limit.
    """

    components: tuple[Component, ...]
    no_kill: bool
    minutes: int

    @property
    def is_het(self) -> bool:
        """Whether it is a heterogeneous job."""
        return len(self.components) > 1

    @property
    def mapping(self) -> dict[str, str] | None:
        """Component of each group, as :func:`hpcrl.plan.plan.make_plan` takes it; None for a single allocation."""
        if not self.is_het:
            return None
        return {group: component.name for component in self.components for group in component.groups}

    def allocation(self) -> Allocation:
        """What Slurm will give, to plan on before it does: nodes without spares, each component's in its turn."""
        nodes = []
        for component in self.components:
            label = component.name if self.is_het else ""
            for index in range(component.nodes - component.spares):
                name = f"{component.name}{index}"
                nodes.append(
                    Node(
                        name=name,
                        address=name,
                        gpus=tuple(range(component.gpus_per_node)),
                        cpus=component.cpus_per_node,
                        memory_gib=component.memory_gib,
                        component=label,
                    )
                )
        return Allocation(nodes=tuple(nodes))

    def to_json(self) -> str:
        """For the run directory: the supervisor starts its steps from it."""
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Layout:
        """Back from :meth:`to_json`; ``CheckFailed`` if the text is no layout."""
        try:
            value = json.loads(text)
            components = tuple(Component(**{**item, "groups": tuple(item["groups"])}) for item in value.pop("components"))
            return cls(components=components, **value)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckFailed([f"no layout: {error!r}"]) from error
