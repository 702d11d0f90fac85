"""Which groups go into which component: by the kind of resources that they need; and which components are jobs of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from hpcrl.plan.demand import Unit, units_of
from hpcrl.recipe import Recipe

HUB = "hub"


@dataclass(frozen=True)
class Kind:
    """Groups that are asked for together."""

    name: str
    groups: tuple[str, ...]
    has_gpus: bool


def kinds_of(recipe: Recipe, *, apart: bool) -> list[Kind]:
    """The hub first: every group without GPUs; then a kind for each group or ring with GPUs, by name.

    Args:
        apart: services and worlds without GPUs are kinds of their own too, as their relatives with GPUs are.
    """
    with_gpus, without = units_of(recipe)
    own = [unit for unit in without if apart and _stands_alone(recipe, unit)]
    hub = [unit for unit in without if unit not in own]
    kinds = [Kind(unit.name, _groups(unit), unit.gpus > 0) for unit in (*with_gpus, *own)]
    kinds.sort(key=lambda kind: kind.name)
    groups = tuple(sorted(name for unit in hub for name in _groups(unit)))
    if groups:
        # A group or ring may have taken the name; theirs hold no hyphen.
        taken = any(kind.name == HUB for kind in kinds)
        kinds.insert(0, Kind(f"cpu-{HUB}" if taken else HUB, groups, False))
    return kinds


def joining(partitions: Mapping[str, str], preemptible: Iterable[str]) -> frozenset[str]:
    """Names of components that are jobs of their own: they can be preempted, and others cannot.

    Args:
        partitions: of each component; several are separated by commas.
        preemptible: the site's preemptible partitions.
    """
    cheap = {name for name, text in partitions.items() if kind_of(text, preemptible) == "preemptible"}
    safe = any(kind_of(text, preemptible) == "protected" for text in partitions.values())
    return frozenset(cheap if safe else ())


def kind_of(partition: str, preemptible: Iterable[str]) -> Literal["preemptible", "protected", "mixed"]:
    """Whether jobs of these partitions, separated by commas, can be preempted."""
    names, cheap = set(partition.split(",")), set(preemptible)
    if names <= cheap:
        return "preemptible"
    return "mixed" if names & cheap else "protected"


def _stands_alone(recipe: Recipe, unit: Unit) -> bool:
    return any(recipe.groups[name].role.service or recipe.groups[name].role.world for name in _groups(unit))


def _groups(unit: Unit) -> tuple[str, ...]:
    return tuple(member.name for member in unit.members)


def in_words(components: Iterator[tuple[str, int, int]]) -> str:
    """``hub 1 node without GPUs, trainer 2 nodes x 4 GPUs``; from name, nodes and GPUs of a node."""
    return ", ".join(
        f"{name} {nodes} node{'s' if nodes > 1 else ''} "
        + (f"x {gpus} GPU{'s' if gpus > 1 else ''}" if gpus else "without GPUs")
        for name, nodes, gpus in components
    )
