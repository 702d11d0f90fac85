"""Choose the layout of a job for a recipe; refuse what does not fit, and what Slurm is known to break."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from hpcrl.config.nearest import nearest
from hpcrl.launch.components import Kind, in_words, joining, kinds_of
from hpcrl.launch.duration import minutes_of
from hpcrl.launch.layout import Asked, Component, Layout
from hpcrl.launch.refusals import asked_problems, partition_problems
from hpcrl.launch.site import NodeShape, Site
from hpcrl.launch.sizing import LEADER_CORES, cut, idle_nodes, size_of
from hpcrl.plan.placement import place
from hpcrl.recipe import Recipe
from hpcrl.run.errors import CheckFailed, checked

Components = tuple[Component, ...]


def make_layout(recipe: Recipe, asked: Asked, site: Site) -> Layout:
    """Components, nodes, cores and memory for a recipe on a site. Pure.

    Raises:
        CheckFailed: the recipe does not fit what was asked, or what was asked is a layout that Slurm is known to break.
    """
    problems = list(asked_problems(recipe, asked, site))
    if problems:
        raise CheckFailed(problems)
    no_kill = asked.survive_node_loss or asked.spares > 0
    named = bool(asked.partitions or asked.nodes_of)
    tries: list[Callable[[], Components]] = []
    if asked.layout != "het" and not named:
        tries.append(lambda: _single(recipe, asked, site))
    if asked.layout != "single" and not no_kill:
        tries.append(lambda: _het(recipe, asked, site))
    components = _best(tries)
    problems = list(partition_problems(recipe, components, site))
    if problems:
        raise CheckFailed(problems)
    return Layout(components=components, no_kill=no_kill, minutes=minutes_of(asked.time or site.time))


def _best(tries: Sequence[Callable[[], Components]]) -> Components:
    problems: list[str] = []
    found = [components for attempt in tries if (components := checked(attempt, problems)) is not None]
    if not found:
        raise CheckFailed(list(dict.fromkeys(problems)))
    # The first, a single allocation, unless components hold fewer GPUs.
    return min(found, key=lambda components: sum(item.nodes * item.gpus_per_node for item in components))


def _single(recipe: Recipe, asked: Asked, site: Site) -> Components:
    has_gpus = any(group.resources.gpus for group in recipe.groups.values())
    shape = _shape(asked, site, has_gpus)
    try:
        size = size_of(recipe, shape, nodes=asked.nodes, spare_cores=LEADER_CORES, whole=site.exclusive)
    except CheckFailed as failed:
        if asked.nodes is None:
            raise
        raise CheckFailed([*_rescaling(recipe, asked, shape), *failed.problems]) from failed
    component = Component(
        name="all",
        groups=tuple(sorted(recipe.groups)),
        nodes=size.nodes + asked.spares,
        gpus_per_node=size.gpus,
        cpus_per_node=size.cpus,
        memory_gib=size.memory_gib,
        partition=asked.partition or _partition(site, has_gpus),
        spares=asked.spares,
    )
    no_choice = asked.layout == "single" or asked.survive_node_loss or asked.spares > 0
    return _checked(recipe, (component,), gpus_may_idle=no_choice)


def _rescaling(recipe: Recipe, asked: Asked, shape: NodeShape) -> list[str]:
    try:
        need = size_of(recipe, shape)
    except CheckFailed:
        # More nodes would not help.
        return []
    words = in_words(iter([("the recipe needs", need.nodes, need.gpus)]))
    return [f"{words}, asked {asked.nodes}; ask --nodes {need.nodes}, or lower replicas"]


def _het(recipe: Recipe, asked: Asked, site: Site) -> Components:
    forced = asked.layout == "het" or bool(asked.partitions or asked.nodes_of)
    kinds = kinds_of(recipe, apart=forced)
    names = [kind.name for kind in kinds]
    problems = [
        f"{option} {name}: the layout has no such component; {nearest(name, names)}"
        for option, given in (("partition of", asked.partitions), ("nodes of", asked.nodes_of))
        for name in given
        if name not in names
    ]
    if len(kinds) < 2:
        problems.append(f"layout het needs two kinds of resources and {recipe.name} has one; use --layout single")
    if problems:
        raise CheckFailed(problems)
    components: list[Component] = []
    partitions = {kind.name: _partition_of(kind, asked, site) for kind in kinds}
    joins = joining(partitions, site.preemptible_partitions)
    # Slots of the main job are counted first.
    for kind in sorted(kinds, key=lambda kind: kind.name in joins):
        try:
            components.append(_component(recipe, kind, asked, site, joins=kind.name in joins, leads=not components))
        except CheckFailed as failed:
            problems += [f"component {kind.name}: {problem}" for problem in failed.problems]
    if problems:
        raise CheckFailed(problems)
    if not forced:
        components = _merged(components)
    words = in_words((item.name, item.nodes, item.gpus_per_node) for item in components)
    total = sum(item.nodes for item in components)
    if asked.nodes not in (None, total):
        raise CheckFailed(
            [f"as components it needs {total} nodes ({words}), asked {asked.nodes}; ask --nodes {total}, or change replicas"]
        )
    return _checked(recipe, tuple(components), gpus_may_idle=True)


def _component(recipe: Recipe, kind: Kind, asked: Asked, site: Site, *, joins: bool, leads: bool) -> Component:
    size = size_of(
        cut(recipe, kind.groups),
        _shape(asked, site, kind.has_gpus),
        nodes=asked.nodes_of.get(kind.name),
        spare_cores=LEADER_CORES if leads else 0,
        whole=site.exclusive,
    )
    return Component(
        name=kind.name,
        groups=kind.groups,
        nodes=size.nodes,
        gpus_per_node=size.gpus,
        cpus_per_node=size.cpus,
        memory_gib=size.memory_gib,
        partition=_partition_of(kind, asked, site),
        joins=joins,
    )


def _partition_of(kind: Kind, asked: Asked, site: Site) -> str:
    return asked.partitions.get(kind.name) or asked.partition or _partition(site, kind.has_gpus)


def _merged(components: Sequence[Component]) -> list[Component]:
    alike: dict[tuple[int, str], list[Component]] = {}
    for component in components:
        alike.setdefault((component.gpus_per_node, component.partition), []).append(component)
    return [
        Component(
            name="+".join(item.name for item in items),
            groups=tuple(sorted(group for item in items for group in item.groups)),
            nodes=sum(item.nodes for item in items),
            gpus_per_node=items[0].gpus_per_node,
            cpus_per_node=max(item.cpus_per_node for item in items),
            memory_gib=max(item.memory_gib for item in items),
            partition=items[0].partition,
            joins=items[0].joins,
        )
        for items in alike.values()
    ]


def _shape(asked: Asked, site: Site, has_gpus: bool) -> NodeShape:
    if has_gpus:
        return dataclasses.replace(site.node, gpus=site.node.gpus if asked.gpus_per_node is None else asked.gpus_per_node)
    return site.cpu_node if site.cpu_node.cpus else dataclasses.replace(site.node, gpus=0, gpu_memory_gib=0.0)


def _partition(site: Site, has_gpus: bool) -> str:
    return site.partition if has_gpus else site.cpu_partition or site.partition


def _checked(recipe: Recipe, components: Components, *, gpus_may_idle: bool) -> Components:
    """The components, once the whole recipe was planned on them as the run will do it and no node but spares idles."""
    layout = Layout(components=components, no_kill=False, minutes=1)
    allocation = layout.allocation()
    nodes = len(allocation.nodes)
    placed = place(recipe, allocation, layout.mapping)
    idle = idle_nodes(placed, nodes)
    if idle:
        raise CheckFailed([f"{idle} of {nodes} nodes would hold no role; ask --nodes {nodes - idle}, or raise replicas"])
    using = {item.node for item in placed if item.gpus}
    unused = sum(bool(node.gpus) and index not in using for index, node in enumerate(allocation.nodes))
    if unused and not gpus_may_idle:
        raise CheckFailed(
            [
                f"in a single allocation the GPUs of {unused} of {nodes} nodes would idle; ask for fewer --nodes, raise "
                "replicas, or say --layout single if that is meant"
            ]
        )
    return components
