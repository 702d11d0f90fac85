"""A set of whole numbers that lie mostly next to each other, kept as intervals."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator


class IntervalSet:
    """Numbers in half-open intervals, merged where they touch."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    @property
    def intervals(self) -> int:
        """How many intervals it takes."""
        return len(self._starts)

    def __len__(self) -> int:
        return sum(self._ends) - sum(self._starts)

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._starts, number) - 1
        return at >= 0 and number < self._ends[at]

    def __iter__(self) -> Iterator[int]:
        for start, end in zip(self._starts, self._ends, strict=True):
            yield from range(start, end)

    def add(self, start: int, count: int = 1) -> None:
        """Add ``start`` to ``start + count - 1``, of which any may be there."""
        starts, ends, end = self._starts, self._ends, start + count
        at = bisect_right(starts, start)
        if at and ends[at - 1] >= start:
            at -= 1
            if ends[at] >= end:
                return
            start = starts[at]
        stop = bisect_right(starts, end, lo=at)
        if stop > at:
            end = max(end, ends[stop - 1])
        if stop == at + 1:
            starts[at], ends[at] = start, end
        else:
            starts[at:stop] = [start]
            ends[at:stop] = [end]

    def update(self, other: IntervalSet) -> None:
        """Add every number of another set."""
        for start, end in zip(other._starts, other._ends, strict=True):
            self.add(start, end - start)

    def above(self, start: int) -> Iterator[int]:
        """Numbers of the set from ``start`` on, rising."""
        for at in range(max(0, bisect_right(self._starts, start) - 1), len(self._starts)):
            yield from range(max(start, self._starts[at]), self._ends[at])

    def missing(self, start: int, end: int) -> Iterator[int]:
        """Numbers of ``start`` to ``end - 1`` that are not in the set, rising."""
        while start < end:
            at = bisect_right(self._starts, start) - 1
            if at >= 0 and start < self._ends[at]:
                start = self._ends[at]
                continue
            stop = min(end, self._starts[at + 1] if at + 1 < len(self._starts) else end)
            yield from range(start, stop)
            start = stop
