"""What a layout asks of partitions against what they are; pure. ``sbatch`` itself would queue some of it for ever."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hpcrl.config.nearest import nearest
from hpcrl.launch.layout import Component, Layout
from hpcrl.launch.site import Site
from hpcrl.launch.slurm_text import NodeKind, Partition

MB_PER_GIB = 1024


def cluster_problems(
    layout: Layout, site: Site, partitions: Mapping[str, Partition], nodes: Sequence[NodeKind]
) -> Iterator[str]:
    """A sentence for each thing that would be refused, or queued and never started."""
    default = next((name for name, item in partitions.items() if item.is_default), "")
    wanted: dict[str, int] = {}
    said: set[str] = set()
    for component in layout.components:
        names = [name for name in (component.partition or default).split(",") if name]
        if not names:
            yield f"component {component.name} names no partition and the cluster has no default; give --partition"
        problems = [list(_partition_problems(name, component, layout, site, partitions, nodes)) for name in names]
        # Slurm takes the first of several that fits.
        if problems and all(problems):
            for problem in problems[0]:
                if problem not in said:
                    said.add(problem)
                    yield problem
        elif len(names) == 1:
            wanted[names[0]] = wanted.get(names[0], 0) + component.nodes
    for name, count in wanted.items():
        most = partitions[name].nodes
        if len(layout.components) > 1 and site.exclusive and count > most:
            yield f"the components ask for {count} whole nodes of partition {name}, which has {most}"


def _partition_problems(
    name: str,
    component: Component,
    layout: Layout,
    site: Site,
    partitions: Mapping[str, Partition],
    nodes: Sequence[NodeKind],
) -> Iterator[str]:
    partition = partitions.get(name)
    if partition is None:
        yield f"there is no partition {name!r} on this cluster; {nearest(name, partitions)}"
        return
    if partition.state != "UP":
        yield f"partition {name} is {partition.state.lower()}: it starts no jobs now"
    if partition.max_minutes is not None and layout.minutes > partition.max_minutes:
        yield (
            f"--time asks for {layout.minutes} minutes and partition {name} allows {partition.max_minutes}; ask for less, the "
            "run goes on after a requeue"
        )
    for what, value, allowed in (("account", site.account, partition.accounts), ("QOS", site.qos, partition.qos)):
        if allowed is not None and value and value not in allowed:
            yield f"partition {name} takes no jobs of {what} {value}; it takes {', '.join(sorted(allowed))}"
    most = partition.nodes if partition.max_nodes is None else min(partition.nodes, partition.max_nodes)
    if component.nodes > most:
        yield f"component {component.name} asks for {component.nodes} nodes and partition {name} gives at most {most}"
        return
    fit = [kind for kind in nodes if kind.partition == name and _fits(kind, component)]
    count = sum(kind.count for kind in fit)
    if nodes and count < component.nodes:
        yield (
            f"component {component.name} asks for {component.nodes} nodes with {_words(component)}, and partition {name} has "
            f"{count} such; compare with `sinfo --partition={name} --Node --long`"
        )


def _fits(kind: NodeKind, component: Component) -> bool:
    return (
        kind.gpus >= component.gpus_per_node
        and kind.cpus >= component.cpus_per_node
        and kind.memory_mb >= int(component.memory_gib * MB_PER_GIB)
    )


def _words(component: Component) -> str:
    memory = f" and {component.memory_gib:g} GiB" if component.memory_gib else ""
    return f"{component.gpus_per_node} GPUs, {component.cpus_per_node} cores{memory}"
