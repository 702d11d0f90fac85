"""Tickets of a reader's fetches: one whose answer never came is used again, so that the same blocks are given again. Pure."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass
class Ticket:
    """One fetch.

    Attributes:
        oldest: number of the oldest ticket that is not settled.
    """

    number: int
    oldest: int
    settled: bool = False

    def settle(self) -> None:
        """The blocks of this ticket have arrived whole."""
        self.settled = True


class Tickets:
    """The tickets of one process for one stream. Thread-safe."""

    def __init__(self) -> None:
        self._lock, self._last = threading.Lock(), 0
        self._in_use: set[int] = set()
        self._waiting: list[int] = []

    @contextlib.contextmanager
    def use(self) -> Iterator[Ticket]:
        """A ticket for one read: one whose blocks did not arrive before, else a new one."""
        with self._lock:
            if self._waiting:
                number = self._waiting.pop(0)
            else:
                self._last += 1
                number = self._last
            self._in_use.add(number)
            ticket = Ticket(number, min(self._in_use.union(self._waiting)))
        try:
            yield ticket
        finally:
            with self._lock:
                self._in_use.discard(number)
                if not ticket.settled:
                    self._waiting.append(number)
