"""Loops in which every group waits for another: over columns of row streams and over start dependencies.

Feedback streams never count: reading one never blocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from hpcrl.plan.contracts import Claims
from hpcrl.recipe import Recipe


@dataclass(frozen=True, order=True)
class Edge:
    """``target`` waits for ``source``, because of ``label``."""

    source: str
    target: str
    label: str


def loop_problems(recipe: Recipe) -> list[str]:
    """One sentence for each loop, the shortest first; loops that share an edge with a reported one are not repeated."""
    return [
        f"groups wait for each other: {loop_text(loop)}; break it with a feedback stream, or read fewer columns"
        for loop in find_loops(waits(recipe))
    ]


def loop_text(loop: Iterable[Edge]) -> str:
    """``a -(stream: column)-> b -(after)-> a``."""
    edges = tuple(loop)
    return edges[0].source + "".join(f" -({edge.label})-> {edge.target}" for edge in edges)


def waits(recipe: Recipe) -> tuple[Edge, ...]:
    """Who waits for whom, sorted; one edge for each pair of groups and stream."""
    edges = set()
    claims = Claims(recipe)
    for reader, read in claims.reads:
        for writer, write in claims.writes:
            # A set of the writer's columns keeps the reader's order in the label.
            shared = [column for column in read.columns if column in set(write.columns)]
            if write.stream == read.stream and shared:
                edges.add(Edge(writer, reader, f"{read.stream}: {', '.join(shared)}"))
    for name, group in recipe.groups.items():
        edges |= {Edge(other, name, "after") for other in group.after if other in recipe.groups}
    return tuple(sorted(edges))


def find_loops(edges: Iterable[Edge]) -> list[tuple[Edge, ...]]:
    """Loops that no two of share an edge and whose removal leaves none; the shortest first, ties by name.

    A loop begins at its first group by name.
    """
    left = sorted(edges)
    loops = []
    while loop := _shortest(left):
        loops.append(loop)
        left = [edge for edge in left if edge not in loop]
    return loops


def _shortest(edges: list[Edge]) -> tuple[Edge, ...] | None:
    best: tuple[Edge, ...] | None = None
    for start in sorted({edge.source for edge in edges}):
        loop = _shortest_through(start, edges)
        if loop is not None and (best is None or len(loop) < len(best)):
            best = loop
    return best


def _shortest_through(start: str, edges: list[Edge]) -> tuple[Edge, ...] | None:
    came_by: dict[str, Edge] = {}
    waiting = deque([start])
    while waiting:
        group = waiting.popleft()
        for edge in edges:
            if edge.source != group:
                continue
            if edge.target == start:
                loop = [edge]
                while loop[0].source != start:
                    loop.insert(0, came_by[loop[0].source])
                return tuple(loop)
            if edge.target not in came_by:
                came_by[edge.target] = edge
                waiting.append(edge.target)
    return None
