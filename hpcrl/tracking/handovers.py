"""Hand-overs of rings' tokens from journal records: how long the newest ones took. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# A median over more would hide what the run does now.
_NEWEST = 50


@dataclass(frozen=True)
class HandoverSummary:
    """Hand-overs of one ring from one group to another.

    Attributes:
        count: in the attempt.
        seconds: median of the newest, from the call to let go, or where there was none from the begin of the release, until the
            taker's slowest process works.
        parts: medians of what that is made of [s]: ``gave`` the giver's letting go, ``resume`` memory taken again, ``load``
            weights loaded, where there are any.
        freed_bytes: that the giver let go of, at the last one.
    """

    ring: str
    giver: str
    taker: str
    count: int
    seconds: float
    parts: Mapping[str, float]
    freed_bytes: int


class Handovers:
    """Folds the records of one attempt, a later one's in place of an earlier one's."""

    def __init__(self) -> None:
        self._attempt = 0
        # By ring, giver and taker.
        self._counts: dict[tuple[str, str, str], int] = {}
        # Each with its epoch.
        self._newest: dict[tuple[str, str, str], deque[tuple[int, Mapping[str, Any]]]] = {}

    def add(self, attempt: int, writer: str, record: Mapping[str, Any]) -> None:
        """Take a record of kind ``handover``; what is no such thing is passed over."""
        giver, epoch, seconds = record.get("giver"), record.get("epoch"), record.get("seconds")
        if attempt < self._attempt or not giver or not isinstance(epoch, int) or not isinstance(seconds, int | float):
            return
        if attempt > self._attempt:
            self._attempt, self._counts, self._newest = attempt, {}, {}
        key = (str(record.get("ring")), str(giver), writer.rpartition(".")[0])
        held = self._newest.setdefault(key, deque(maxlen=_NEWEST))
        if held and held[-1][0] == epoch:
            # Another process of the taker; the slowest counts.
            if float(held[-1][1]["seconds"]) < seconds:
                held[-1] = (epoch, record)
            return
        held.append((epoch, record))
        self._counts[key] = self._counts.get(key, 0) + 1

    def summaries(self) -> tuple[HandoverSummary, ...]:
        """Of each pair of groups that handed on, by ring."""
        # Costs more to import than all else here, and most runs have no ring.
        from statistics import median

        return tuple(
            HandoverSummary(
                *key,
                count=self._counts[key],
                seconds=median(float(record["seconds"]) for _, record in held),
                parts={name: median(values) for name in ("gave", "resume", "load") if (values := _values(held, f"{name}_s"))},
                freed_bytes=int(held[-1][1].get("freed_bytes") or 0),
            )
            for key, held in sorted(self._newest.items())
        )


def _values(held: deque[tuple[int, Mapping[str, Any]]], name: str) -> list[float]:
    return [float(record[name]) for _, record in held if isinstance(record.get(name), int | float)]
