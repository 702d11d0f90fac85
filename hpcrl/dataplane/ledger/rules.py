"""What the ledger must know of the recipe: who may do what, who must close, and how much fits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from hpcrl.recipe import Recipe, Stream


def group_of(who: str) -> str:
    """Group of a process ``group.rank``."""
    return who.rpartition(".")[0]


class StreamRules(msgspec.Struct, frozen=True):
    """Of one stream.

    Attributes:
        columns: all of them.
        created: those that a put holds, all at once.
        creators: groups that put; one, where the recipe was checked.
        fillers: groups that fill each further column.
        readers: groups that read.
        final: the group whose acknowledgement clears; empty if there is none.
        capacity_rows, capacity_bytes: how much untrained may live.
        max_row_bytes: no put may have more bytes a row, on average.
    """

    name: str
    columns: tuple[str, ...]
    created: tuple[str, ...]
    creators: tuple[str, ...]
    fillers: dict[str, tuple[str, ...]]
    readers: tuple[str, ...]
    final: str
    block_rows: int
    capacity_rows: int
    capacity_bytes: int
    max_row_bytes: int


class RingRules(msgspec.Struct, frozen=True):
    """Of a ring that has a token."""

    name: str
    members: tuple[str, ...]
    fallback: str


class Rules(msgspec.Struct, frozen=True):
    """Of a run.

    Attributes:
        processes: number of processes of each group.
        announcers: groups that announce on each feedback stream.
        rings: those that have a token.
    """

    processes: dict[str, int]
    streams: dict[str, StreamRules]
    announcers: dict[str, tuple[str, ...]]
    rings: dict[str, RingRules] = {}

    def names(self, groups: Iterable[str]) -> frozenset[str]:
        """Every process of some groups."""
        return frozenset(f"{group}.{rank}" for group in groups for rank in range(self.processes[group]))

    def closers(self, stream: str, columns: Iterable[str]) -> frozenset[str]:
        """Every process that must close the stream before a reader of these columns has reached its end."""
        rules = self.streams[stream]
        return self.names({*rules.creators, *(group for column in columns for group in rules.fillers.get(column, ()))})


def rules_of(recipe: Recipe, processes: Mapping[str, int]) -> Rules:
    """The rules of a recipe, given the number of processes of each of its groups."""
    return Rules(
        processes={group: processes[group] for group in recipe.groups},
        streams={stream.name: _stream_rules(recipe, stream) for stream in recipe.streams},
        announcers={
            feedback.name: tuple(name for name, group in recipe.groups.items() if feedback.name in group.role.announces())
            for feedback in recipe.feedback
        },
        rings={ring.name: RingRules(ring.name, ring.members, ring.fallback) for ring in recipe.rings if ring.fallback},
    )


def _stream_rules(recipe: Recipe, stream: Stream) -> StreamRules:
    writes = [(name, w) for name, group in recipe.groups.items() for w in group.role.writes() if w.stream == stream.name]
    reads = [(name, r) for name, group in recipe.groups.items() for r in group.role.reads() if r.stream == stream.name]
    created = {column for _, write in writes if write.creates for column in write.columns}
    fillers: dict[str, tuple[str, ...]] = {}
    for name, write in writes:
        for column in write.columns:
            if not write.creates and name not in fillers.get(column, ()):
                fillers[column] = (*fillers.get(column, ()), name)
    return StreamRules(
        name=stream.name,
        columns=tuple(column.name for column in stream.columns),
        created=tuple(column.name for column in stream.columns if column.name in created),
        creators=tuple(dict.fromkeys(name for name, write in writes if write.creates)),
        fillers=fillers,
        readers=tuple(dict.fromkeys(name for name, _ in reads)),
        final=next((name for name, read in reads if read.final), ""),
        block_rows=stream.block_rows,
        capacity_rows=stream.capacity_rows,
        capacity_bytes=stream.capacity_bytes,
        max_row_bytes=stream.max_row_bytes,
    )
