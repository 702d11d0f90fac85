"""All books together, and what several operations do to them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from hpcrl.dataplane.ledger.clock import LeaseClock
from hpcrl.dataplane.ledger.events import Event, Kind
from hpcrl.dataplane.ledger.ops import Labels, Ref, Refused
from hpcrl.dataplane.ledger.records import Block, LedgerRecord, ProcessRecord, RingRecord, StreamRecord
from hpcrl.dataplane.ledger.rings import Ring
from hpcrl.dataplane.ledger.rules import Rules, group_of
from hpcrl.dataplane.ledger.segments import Segments
from hpcrl.dataplane.ledger.streams import StreamBook


class Refusal(Exception):
    """An operation is against the rules; raised before anything is changed."""

    def __init__(self, answer: Refused) -> None:
        self.answer = answer
        super().__init__(answer.reason)


def refuse_schema(reason: str) -> Refusal:
    """No such stream, column, right or row."""
    return Refusal(Refused("schema", reason))


class Books:
    """What the ledger's parts work on.

    Attributes:
        events: made by the operation at work.
        values: indexes in TransferQueue's storage that it made useless.
        news: streams in which something may be had since somebody last looked, and topics of rings that have changed.
        now: of the operation at work [Unix s].
    """

    def __init__(self, rules: Rules, record: LedgerRecord) -> None:
        self.rules, self.record = rules, record
        for name in rules.streams:
            record.streams.setdefault(name, StreamRecord())
        self.streams = {name: StreamBook(stream, record.streams[name]) for name, stream in rules.streams.items()}
        for name in rules.rings:
            record.rings.setdefault(name, RingRecord())
        self.rings = {name: Ring(ring, record.rings[name]) for name, ring in rules.rings.items()}
        self.segments = Segments(record.segments)
        self.clock = LeaseClock()
        self.events: list[Event] = []
        self.values: dict[int, None] = {}
        self.news: set[str] = set()
        self.now = 0.0

    def book(self, stream: str) -> StreamBook:
        """A stream's book; refuses an unknown one."""
        if stream not in self.streams:
            raise refuse_schema(f"stream {stream!r} is unknown; there are {sorted(self.streams)}")
        return self.streams[stream]

    def process(self, who: str) -> ProcessRecord:
        """A process that has said Hello."""
        return self.record.processes[who]

    def note(
        self,
        kind: Kind,
        who: str,
        life: int,
        stream: str = "",
        blocks: Sequence[Block] = (),
        *,
        labels: Labels | None = None,
        version: int = -1,
        reason: str = "",
    ) -> None:
        """An event, unless it is about blocks and there are none."""
        if blocks or not stream:
            spans = [(block.first, block.rows) for block in blocks]
            self.events.append(Event(kind, self.now, who, life, stream, spans, labels or Labels(), version, reason))

    def mine(self, book: StreamBook, block: Block, who: str) -> bool:
        """Whether a process may say that its group is done with a block: nobody else of the group holds it."""
        group = group_of(who)
        hold = block.holds.get(group)
        if hold is None:
            return True
        if hold.draw < 0:
            return hold.who == who
        draw = book.record.draws[group].get(hold.draw)
        return draw is not None and who in draw.members

    def finish(self, book: StreamBook, block: Block, group: str) -> None:
        """A group is through with a block, whoever of it holds the lease."""
        self._unhold(book, block, group)
        book.finish(block, group)

    def remove(self, book: StreamBook, blocks: Iterable[Block]) -> None:
        """Blocks are gone, whoever holds them."""
        for block in blocks:
            for group in list(block.holds):
                self._unhold(book, block, group)
            book.remove(block)
            self.segments.release(block.refs.values())
            self._forget(block.refs.values())
        self.news.add(book.rules.name)

    def refuse(self, who: str, life: int, refs: Collection[Ref], kept: Iterable[Ref] = ()) -> None:
        """Nobody needs what a process has written, but for what is ``kept``, which may share its index."""
        self.segments.refuse(who, life, refs)
        self._forget(refs)
        for ref in kept:
            self.values.pop(ref.index, None)

    def let_go(self, who: str, life: int, streams: Iterable[str], kind: Kind) -> None:
        """A process holds nothing any more of streams: its own leases, and its place in draws, end."""
        process, group = self.process(who), group_of(who)
        for name in streams:
            book = self.streams[name]
            freed = [book.record.blocks[first] for first in process.held.pop(name, {})]
            for block in freed:
                book.free(block, group)
            for number, draw in list(book.record.draws.get(group, {}).items()):
                if who in draw.members:
                    freed += self.leave(book, group, number, who)
            self.note(kind, who, life, name, freed)
            if kind == "expired":
                book.record.counters.expired += sum(block.rows for block in freed)
            self.news.add(name)

    def leave(self, book: StreamBook, group: str, number: int, who: str) -> list[Block]:
        """A process is no member of a draw any more; the blocks that are free again if it was the last."""
        draw = book.record.draws[group][number]
        draw.members.pop(who, None)
        if draw.members:
            return []
        del book.record.draws[group][number]
        freed = held_by_draw(book, group, number, [first for share in draw.shares for first in share])
        for block in freed:
            book.free(block, group)
        return freed

    def _forget(self, refs: Iterable[Ref]) -> None:
        self.values.update((ref.index, None) for ref in refs if ref.kind == "tq")

    def _unhold(self, book: StreamBook, block: Block, group: str) -> None:
        hold = block.holds.get(group)
        if hold is not None and hold.draw < 0:
            self.process(hold.who).held[book.rules.name].pop(block.first, None)


def held_by_draw(book: StreamBook, group: str, number: int, firsts: Iterable[int]) -> list[Block]:
    """Those of some blocks that live and that a draw still holds."""
    found = (book.record.blocks.get(first) for first in firsts)
    return [block for block in found if block is not None and (h := block.holds.get(group)) is not None and h.draw == number]
