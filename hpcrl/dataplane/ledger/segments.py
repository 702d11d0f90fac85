"""Which shared-memory segments still hold something."""

from __future__ import annotations

from collections.abc import Iterable

from hpcrl.dataplane.ledger.ops import Ref
from hpcrl.dataplane.ledger.records import SegmentRecord


class Segments:
    """Counts the refs in each segment, and what its owner is still to be told."""

    def __init__(self, records: dict[str, SegmentRecord]) -> None:
        self._records = records
        # What an owner was told before the ledger's process was killed it may not have heard: it is told again.
        self._news: dict[str, set[str]] = {}
        for owner in {record.owner for record in records.values()}:
            self.tell_again(owner)

    def add(self, who: str, life: int, refs: Iterable[Ref]) -> None:
        """Refs that a process made became known, and live."""
        for ref in refs:
            if ref.kind == "shm":
                self._of(who, life, ref).live += 1

    def refuse(self, who: str, life: int, refs: Iterable[Ref]) -> None:
        """Refs that a process made became known, and nobody needs them."""
        for ref in refs:
            if ref.kind == "shm":
                self._let_go(ref.where, self._of(who, life, ref))

    def release(self, refs: Iterable[Ref]) -> None:
        """Refs of a block that is gone."""
        for ref in refs:
            if ref.kind == "shm":
                record = self._records[ref.where]
                record.live -= 1
                self._let_go(ref.where, record)

    def begin(self, who: str, life: int) -> dict[str, int]:
        """A process begins a life: its segments of earlier lives that are empty, which are forgotten."""
        empty = {name: r.released for name, r in self._records.items() if r.owner == who and not r.live and r.life < life}
        for name in empty:
            del self._records[name]
        self._news.pop(who, None)
        return empty

    def take_news(self, who: str) -> dict[str, int]:
        """Segments of a process that are empty and were not since it was last told."""
        return {
            n: self._records[n].released for n in self._news.pop(who, ()) if n in self._records and not self._records[n].live
        }

    def tell_again(self, who: str) -> None:
        """A process may not have heard what it was told."""
        self._news[who] = {name for name, record in self._records.items() if record.owner == who and not record.live}

    def _of(self, who: str, life: int, ref: Ref) -> SegmentRecord:
        if ref.where not in self._records:
            self._records[ref.where] = SegmentRecord(who, life)
        return self._records[ref.where]

    def _let_go(self, name: str, record: SegmentRecord) -> None:
        record.released += 1
        if not record.live:
            self._news.setdefault(record.owner, set()).add(name)
