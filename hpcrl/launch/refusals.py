"""What may not be asked of Slurm, and why: layouts that it is known to break, and requests that contradict themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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


def partition_problems(components: Sequence[Component], site: Site) -> Iterator[str]:
    """Mixtures of preemptible and protected partitions, which Slurm would treat as wholly protected."""
    if len(components) < 2:
        return
    preemptible = set(site.preemptible_partitions)
    cheap = [item for item in components if set(item.partition.split(",")) <= preemptible]
    mixed = [item for item in components if item not in cheap and set(item.partition.split(",")) & preemptible]
    safe = [item for item in components if item not in cheap and item not in mixed]
    for item in mixed:
        yield (
            f"component {item.name}: {item.partition} names preemptible and protected partitions; Slurm preempts a "
            "heterogeneous job only when all its components can be preempted, so name partitions of one kind"
        )
    if cheap and safe:
        yield (
            f"components {_where(cheap)} can be preempted and {_where(safe)} cannot: Slurm never preempts a heterogeneous job "
            "with one protected component, so none of it would be cheap; use partitions of one kind for all of them, or run "
            "the preemptible part as a job of its own that joins the run"
        )


def _where(components: Sequence[Component]) -> str:
    return ", ".join(f"{item.name} ({item.partition})" for item in components)
