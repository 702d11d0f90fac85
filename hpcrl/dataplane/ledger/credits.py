"""Room in a stream: how much may be put, and whose turn it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from hpcrl.dataplane.ledger.records import Block
from hpcrl.dataplane.ledger.rules import StreamRules

# A producer that has not asked again for so long has lost its place among those that wait [s].
WAITING_S = 10.0


class Amount(NamedTuple):
    """Rows and bytes."""

    rows: int = 0
    bytes: int = 0


class Credits:
    """Untrained rows that live, against the stream's capacity.

    They stay within it, but for one block of each producer that has nothing there: it may always put one, because a reader
    may wait for just that. Who must wait is served in turn; nobody overtakes unless there is room for those before too.

    Attributes:
        used: by untrained live blocks.
    """

    def __init__(self, rules: StreamRules, blocks: Iterable[Block]) -> None:
        self._rules = rules
        self.used = Amount()
        self._of: Counter[str] = Counter()
        # What each process that waits has asked for, in turn, and when it last did, by the ledger's clock.
        self._waiting: dict[str, tuple[Amount, float]] = {}
        for block in blocks:
            if not block.trained:
                self.count(block, 1)

    @property
    def waiting(self) -> list[str]:
        """Processes that were told to wait, in turn."""
        return list(self._waiting)

    def count(self, block: Block, sign: int) -> None:
        """An untrained block is there (1), or no longer (-1)."""
        self.used = Amount(self.used.rows + sign * block.rows, self.used.bytes + sign * block.bytes)
        self._of[block.maker] += sign * block.rows

    def grow(self, size: int) -> None:
        """An untrained block has got columns of so many bytes more."""
        self.used = Amount(self.used.rows, self.used.bytes + size)

    def admit(self, who: str, rows: int, size: int, clock: float) -> bool:
        """Whether a process may put so much now; otherwise it stands in line."""
        if self._of[who]:
            for name in [name for name, (_, asked) in self._waiting.items() if asked + WAITING_S < clock]:
                del self._waiting[name]
            ahead = Amount()
            for name, (amount, _) in self._waiting.items():
                if name == who:
                    break
                ahead = Amount(ahead.rows + amount.rows, ahead.bytes + amount.bytes)
            if not self._fits(ahead.rows + rows, ahead.bytes + size):
                self._waiting[who] = (Amount(rows, size), clock)
                return False
        self._waiting.pop(who, None)
        return True

    def forget(self, who: str) -> None:
        """A process waits no longer."""
        self._waiting.pop(who, None)

    def _fits(self, rows: int, size: int) -> bool:
        return self.used.rows + rows <= self._rules.capacity_rows and self.used.bytes + size <= self._rules.capacity_bytes
