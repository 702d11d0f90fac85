"""How many more rows a producer may put, asking the queue as seldom as it can. Pure."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Room:
    """One process's share of one stream's capacity. Thread-safe.

    Rows of this process only ever become fewer by themselves, so what was free at the last look may be used up without
    looking again.

    Args:
        allowed: rows of this process that may live at a time. A process without live rows may put a block all the same.
    """

    def __init__(self, allowed: int) -> None:
        self._allowed, self._free, self._under_way = allowed, 0, 0
        self._lock = threading.Lock()

    def take(self, rows: int, count_live: Callable[[], int]) -> bool | None:
        """Whether ``rows`` rows may be put now: True, with a promise to call :meth:`settle`; None while there is no room.

        Args:
            count_live: looks at the queue for this process's live rows.
        """
        with self._lock:
            if self._free < rows:
                used = count_live() + self._under_way
                # Rows under way may be counted twice, which errs on the safe side.
                self._free = max(rows, self._allowed) if used == 0 else self._allowed - used
            if self._free < rows:
                return None
            self._free -= rows
            self._under_way += rows
            return True

    def settle(self, rows: int) -> None:
        """The put of these rows has ended, one way or the other."""
        with self._lock:
            self._under_way -= rows
