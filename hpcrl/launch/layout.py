"""What a run asks of Slurm: one allocation of equal nodes, or a heterogeneous job of several components.

Components of services in a cheaper, preemptible partition beside protected ones are jobs of their own that join the run: Slurm
would not preempt a heterogeneous job of which one component is protected.
"""

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
        partitions: for single components, by name.
        nodes_of: nodes of single components, by name; others take as many as they need.
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
        joins: it is a job of its own that joins the run, and may be preempted while the main job goes on.
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
    joins: bool = False

    @property
    def ignitors_per_node(self) -> int:
        """One for each GPU, or one."""
        return max(1, self.gpus_per_node)

    @property
    def used(self) -> int:
        """Nodes that hold ignitors at a time."""
        return self.nodes - self.spares


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The components: those of the main job in Slurm's order, then those that join it. Slots are counted in this order.

    The main job's batch script runs on the first component's first node.

    Attributes:
        no_kill: the job outlives the loss of a node. Only ever with a single component: Slurm requeues the leader of a
            heterogeneous job alone when it has one node, and the job then never starts again.
        minutes: time limit.
    """

    components: tuple[Component, ...]
    no_kill: bool
    minutes: int

    @property
    def main(self) -> tuple[Component, ...]:
        """Components of the main job."""
        return tuple(component for component in self.components if not component.joins)

    @property
    def joined(self) -> tuple[Component, ...]:
        """Components that are jobs of their own."""
        return tuple(component for component in self.components if component.joins)

    @property
    def is_het(self) -> bool:
        """Whether the main job is a heterogeneous one."""
        return len(self.main) > 1

    @property
    def mapping(self) -> dict[str, str] | None:
        """Component of each group, as :func:`hpcrl.plan.plan.make_plan` takes it; None for a single allocation."""
        if len(self.components) == 1:
            return None
        return {group: component.name for component in self.components for group in component.groups}

    @property
    def slots(self) -> dict[str, range]:
        """Slots of each component."""
        found: dict[str, range] = {}
        first = 0
        for component in self.components:
            found[component.name] = range(first, first := first + component.used * component.ignitors_per_node)
        return found

    def label(self, component: Component) -> str:
        """What the nodes of a component are known by to the planner: its name, or nothing in a single allocation."""
        return component.name if len(self.components) > 1 else ""

    def allocation(self) -> Allocation:
        """What Slurm will give, to plan on before it does: nodes without spares, each component's in its turn."""
        nodes = []
        for component in self.components:
            for index in range(component.used):
                name = f"{component.name}{index}"
                nodes.append(
                    Node(
                        name=name,
                        address=name,
                        gpus=tuple(range(component.gpus_per_node)),
                        cpus=component.cpus_per_node,
                        memory_gib=component.memory_gib,
                        component=self.label(component),
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
