"""Which columns of which streams travel between nodes; pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from hpcrl.recipe import Reads, Recipe, Role, Writes

Edge = tuple[str, str]


def edges_across(recipe: Recipe, nodes: Mapping[str, frozenset[str]]) -> frozenset[Edge]:
    """``(stream, column)`` that some process writes on one node and some other reads on another.

    All others stay within one node, so their bytes can lie in its shared memory.

    Args:
        nodes: names of the nodes of each group.
    """
    across = set()
    for stream in recipe.streams:
        for column in stream.columns:
            touching = [
                nodes[name]
                for name, group in recipe.groups.items()
                for claim in claims(group.role)
                if claim.stream == stream.name and column.name in claim.columns
            ]
            if len(frozenset().union(*touching)) > 1:
                across.add((stream.name, column.name))
    return frozenset(across)


def claims(role: Role) -> tuple[Reads | Writes, ...]:
    """All that a role reads and writes."""
    return (*role.reads(), *role.writes())


def crosses(role: Role, edges: Collection[Edge]) -> bool:
    """Whether a role reads or writes one of these columns."""
    claimed = {(claim.stream, name) for claim in claims(role) for name in claim.columns}
    # Who clears rows clears them all, and a creator may drop some.
    whole = {r.stream for r in role.reads() if r.final} | {w.stream for w in role.writes() if w.creates}
    return any(edge in claimed or edge[0] in whole for edge in edges)
