"""What may not be asked of Slurm, and why: layouts that it is known to break, and requests that contradict themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpcrl.launch.components import kind_of
from hpcrl.launch.duration import minutes_of
from hpcrl.launch.layout import Asked, Component
from hpcrl.launch.site import Site
from hpcrl.recipe import Recipe


def asked_problems(recipe: Recipe, asked: Asked, site: Site) -> Iterator[str]:
    """What of the asked can be refused before anything is sized; a sentence each."""
    counts = (("nodes", asked.nodes, 1), ("gpus_per_node", asked.gpus_per_node, 0), ("spares", asked.spares, 0))
    for name, value, least in counts:
        if value is not None and value < least:
            yield f"{name} is {value}; it must be at least {least}"
    for name, value in asked.nodes_of.items():
        if value < 1:
            yield f"nodes of {name} is {value}; it must be at least 1"
    if asked.time:
        try:
            minutes_of(asked.time)
        except ValueError as error:
            yield str(error)
    has_gpus = any(group.resources.gpus for group in recipe.groups.values())
    if asked.gpus_per_node is None and has_gpus and not site.node.gpus:
        yield f"site profile {site.name} does not say how many GPUs a node has; give --gpus-per-node, or [node] gpus in it"
    if asked.gpus_per_node and 0 < site.node.gpus < asked.gpus_per_node:
        yield f"{asked.gpus_per_node} GPUs a node are asked for and nodes of site {site.name} have {site.node.gpus}"
    named = bool(asked.partitions or asked.nodes_of)
    if asked.layout == "single" and named:
        yield "partitions and nodes of components are only for layout het; a single allocation takes --partition and --nodes"
    if (asked.survive_node_loss or asked.spares) and (asked.layout == "het" or named):
        yield (
            "a heterogeneous job cannot survive the loss of a node: Slurm then requeues its leading component alone and the "
            "job never starts again; use --layout single, or leave survive_node_loss and spares out"
        )


def partition_problems(recipe: Recipe, components: Sequence[Component], site: Site) -> Iterator[str]:
    """Mixtures of preemptible and protected partitions in which a run could not go on when Slurm takes the cheap part."""
    if len(components) < 2:
        return
    for item in components:
        if kind_of(item.partition, site.preemptible_partitions) == "mixed":
            yield (
                f"component {item.name}: {item.partition} names preemptible and protected partitions, so it is open whether it "
                "can be preempted; name partitions of one kind for a component"
            )
    safe = _where([item for item in components if not item.joins])
    for item in components:
        workers = [name for name in item.groups if item.joins and not recipe.groups[name].role.service]
        if workers:
            yield (
                f"component {item.name} ({item.partition}) can be preempted and {safe} cannot: Slurm never preempts a "
                "heterogeneous job with one protected component, so the preemptible part would be a job of its own that joins "
                f"the run, and only services, such as inference, can be that; {', '.join(workers)} must stay. Put component "
                f"{item.name} into a protected partition, or all components into preemptible ones"
            )


def _where(components: Sequence[Component]) -> str:
    return ", ".join(f"{item.name} ({item.partition})" for item in components)
