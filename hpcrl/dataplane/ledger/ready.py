"""Blocks that are ready for a group, oldest first, at a cost that does not grow with what is alive."""

from __future__ import annotations

import heapq
from collections.abc import Collection

# Entries of blocks that are no longer free stay in the heap until they come up, or until they are the larger part of it.
_SLACK = 64


class ReadyQueue:
    """Free blocks that have certain columns, by their order number.

    Attributes:
        columns: what a block must have.
        rows: in all the blocks here.
    """

    def __init__(self, columns: frozenset[str]) -> None:
        self.columns = columns
        self.rows = 0
        self._heap: list[int] = []
        self._free: dict[int, int] = {}

    def accepts(self, have: Collection[str]) -> bool:
        """Whether a block with these columns belongs here."""
        return all(column in have for column in self.columns)

    def add(self, order: int, rows: int) -> None:
        """A block is free; once more is no error."""
        if order not in self._free:
            self._free[order] = rows
            self.rows += rows
            heapq.heappush(self._heap, order)

    def discard(self, order: int) -> None:
        """A block is not free any more, if it was."""
        self.rows -= self._free.pop(order, 0)
        if len(self._heap) > 2 * len(self._free) + _SLACK:
            self._heap = sorted(self._free)

    def oldest(self) -> int | None:
        """Order number of the oldest free block."""
        while self._heap and self._heap[0] not in self._free:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None
