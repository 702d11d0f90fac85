"""Row ids: int64, unique within a run whoever makes them, without asking anybody.

From the highest bit: sign 0, attempt (10 bits), incarnation of the process within the attempt (8), number of the writing
process (16), counter of that process (29).
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np

COUNTER_BITS, WRITER_BITS, INCARNATION_BITS, ATTEMPT_BITS = 29, 16, 8, 10


class RowIds:
    """Hands out the row ids of one process. Thread-safe.

    Args:
        attempt: number of the attempt, from 1.
        incarnation: how often this process was restarted within the attempt.
        writer: number of this process among all processes of the run.

    Raises:
        ValueError: a number does not fit its bits.
    """

    def __init__(self, *, attempt: int, incarnation: int, writer: int) -> None:
        prefix = 0
        for name, number, bits in (
            ("attempt", attempt, ATTEMPT_BITS),
            ("incarnation", incarnation, INCARNATION_BITS),
            ("writer", writer, WRITER_BITS),
        ):
            if not 0 <= number < 1 << bits:
                raise ValueError(f"{name} {number} does not fit the {bits} bits that row ids have for it")
            prefix = prefix << bits | number
        self._prefix, self._count, self._lock = prefix, 0, threading.Lock()

    def take(self, rows: int) -> np.ndarray:
        """The next ids, int64 (rows,), each one more than the one before.

        Raises:
            OverflowError: this process has used all its ids.
        """
        with self._lock:
            start, self._count = self._count, self._count + rows
        if start + rows > 1 << COUNTER_BITS:
            raise OverflowError(f"this process has made {start} rows, the most that row ids can number")
        return np.arange(start, start + rows, dtype=np.int64) + (self._prefix << COUNTER_BITS)

    def mine(self, row_id: int) -> bool:
        """Whether this process (this very incarnation) made that id."""
        return row_id >> COUNTER_BITS == self._prefix


class RowOrigin(NamedTuple):
    """What a row id says of its row; see :class:`RowIds`.

    Attributes:
        row: number of the row among those of this process in this life.
    """

    attempt: int
    incarnation: int
    writer: int
    row: int


def origin(row_id: int) -> RowOrigin:
    """Where a row comes from."""
    prefix, row = row_id >> COUNTER_BITS, row_id & (1 << COUNTER_BITS) - 1
    prefix, writer = prefix >> WRITER_BITS, prefix & (1 << WRITER_BITS) - 1
    return RowOrigin(prefix >> INCARNATION_BITS, prefix & (1 << INCARNATION_BITS) - 1, writer, row)


def describe(row_id: int) -> str:
    """The same for a person."""
    made = origin(row_id)
    again = f", life {made.incarnation}" if made.incarnation else ""
    return f"attempt {made.attempt}, process {made.writer}{again}, its row {made.row}"
