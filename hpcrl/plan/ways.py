"""Which way policy weights take from the trainer to each engine; pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple

from hpcrl.recipe import Recipe

Way = Literal["disk", "memory", "distributed", "tcp"]
WAYS: tuple[Way, ...] = ("disk", "memory", "distributed", "tcp")


class Choice(NamedTuple):
    """A way, and why it was chosen, for the log."""

    way: Way
    why: str


def choose(asked: str, *, trainer_nodes: Collection[str], engine_node: str) -> Choice:
    """The way to one engine.

    Args:
        asked: by the recipe: ``auto``, or a way.
        trainer_nodes: names of the nodes of all the trainer's ranks.

    Raises:
        ValueError: there is no such way.
    """
    nodes = sorted(set(trainer_nodes))
    together = nodes == [engine_node]
    if asked == "auto":
        if together:
            return Choice("memory", f"the whole trainer is on {engine_node} too")
        return Choice("disk", f"the trainer is not on {engine_node} alone")
    if asked not in WAYS:
        raise ValueError(f"no way for weights: {asked!r}; there are auto, {', '.join(WAYS)}")
    if asked == "memory" and not together:
        where = nodes[0] if len(nodes) == 1 else f"{len(nodes)} nodes"
        return Choice("disk", f"the trainer is on {where} and the engine on {engine_node}: they share no memory")
    return Choice(next(way for way in WAYS if way == asked), "the recipe asks for it")


def plan_ways(recipe: Recipe, nodes: Mapping[str, Sequence[str]], spanning: Collection[str] = ()) -> dict[str, Choice]:
    """By process of each group whose role names a ``transport``: how it gets what the groups announce that it listens to.

    Args:
        nodes: by group, the node of each of its processes.
        spanning: processes whose replica spans nodes; each of its nodes takes versions from the disk.
    """
    ways = {}
    for name, group in recipe.groups.items():
        asked = getattr(group.role, "transport", None)
        if asked is None:
            continue
        heard = set(group.role.listens())
        sources = [other for other, its in recipe.groups.items() if heard & set(its.role.announces())]
        around = [node for other in sources for node in nodes[other]]
        for rank, node in enumerate(nodes[name]):
            process = f"{name}.{rank}"
            choice = choose(asked, trainer_nodes=around, engine_node=node)
            ways[process] = Choice("disk", "its engine spans nodes") if process in spanning else choice
    return ways
