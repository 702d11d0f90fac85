"""What every run with faults has in common: whom to kill next, how long it was away, and a table of that."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

# Whoever is not back by then never comes.
BACK_S = 180.0


@dataclass(frozen=True)
class Kill:
    """A process that was killed.

    Attributes:
        kind: of process, for the table.
        away_s: until it was back in service [s].
        cpu_s: that the new process had used by then: what is left of the wait where a core is free [s].
        stalled_s: until the next step was trained [s]; 0 where there are no steps.
    """

    name: str
    kind: str
    away_s: float
    cpu_s: float
    stalled_s: float = 0.0


def victims(names: Sequence[str], count: int, draw: random.Random) -> Iterator[str]:
    """So many of the names in random order, none much more often than another."""
    round_: list[str] = []
    for _ in range(count):
        round_ = round_ or draw.sample(names, len(names))
        yield round_.pop()


def table(kills: Iterable[Kill]) -> list[str]:
    """Lines: how often each kind was killed, and how long it was away."""
    kills = list(kills)
    lines = [f"{'kind':10} {'kills':>5}   back in service [s]: p50   p99   max   own CPU [s]: p50   next step [s]: p50   max"]
    for kind in (*sorted({kill.kind for kill in kills}), "all"):
        of_kind = [kill for kill in kills if kind in (kill.kind, "all")]
        p50, p99, most = np.percentile([kill.away_s for kill in of_kind], [50, 99, 100])
        cpu = np.median([kill.cpu_s for kill in of_kind])
        line = f"{kind:10} {len(of_kind):5}   {p50:24.2f} {p99:5.2f} {most:5.2f}   {cpu:16.2f}"
        stalled = [kill.stalled_s for kill in of_kind if kill.stalled_s]
        lines.append(line + (f"   {np.median(stalled):18.1f} {max(stalled):5.1f}" if stalled else ""))
    return lines
