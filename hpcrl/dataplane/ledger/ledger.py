"""The ledger: every operation of every process, one after the other, and what it changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from hpcrl.dataplane.ledger import reading, turning, writing
from hpcrl.dataplane.ledger.books import Books, Refusal, refuse_schema
from hpcrl.dataplane.ledger.events import Event
from hpcrl.dataplane.ledger.ops import (
    Acknowledge,
    Announce,
    Answer,
    AnyOp,
    AskDepth,
    AskHeld,
    Asks,
    AskWhy,
    Beat,
    Close,
    Depths,
    Draw,
    Drop,
    Expire,
    Fill,
    GiveBack,
    Granted,
    Held,
    Hello,
    Lease,
    Logged,
    Newest,
    Op,
    Put,
    Refused,
    Trained,
    Why,
    durable,
)
from hpcrl.dataplane.ledger.records import Block, LedgerRecord, LiveBlock, ProcessRecord
from hpcrl.dataplane.ledger.rules import Rules, group_of
from hpcrl.dataplane.ledger.turns import AskTurn, AwaitTurn, EndTurn, Vacate
from hpcrl.dataplane.ledger.why import figures, why_row

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(LedgerRecord)


class Ledger:
    """All that is known of rows. Deterministic: the same operations with the same times make the same state and events.

    Only operations that :func:`~hpcrl.dataplane.ledger.ops.durable` says change what is in :meth:`state`, so a log of these
    is enough. Whose lease is still good is not in it: after a restart every holder has its whole time again. Not thread-safe.

    Args:
        rules: of the run.
        record: where an earlier one ended; see :meth:`from_state`.
    """

    def __init__(self, rules: Rules, record: LedgerRecord | None = None) -> None:
        self._books = Books(rules, record or LedgerRecord())

    @classmethod
    def from_state(cls, rules: Rules, state: bytes) -> Ledger:
        """Go on where another ended.

        Raises:
            msgspec.MsgspecError: the bytes are no state.
        """
        return cls(rules, _decoder.decode(state))

    def state(self) -> bytes:
        """All that must survive."""
        return _encoder.encode(self._books.record)

    @property
    def events(self) -> int:
        """How many events were made so far, which is the number of the next; replaying makes them again, equally numbered."""
        return self._books.record.events

    def apply(self, op: Logged, now: float) -> tuple[Answer, list[Event]]:
        """Carry an operation out, once.

        Args:
            now: Unix time [s]; the ledger has no other clock.

        Returns:
            The answer, and what happened: events only where the operation is durable.
        """
        books = self._books
        books.now = now
        books.clock.advance(now)
        books.events, books.values = [], {}
        try:
            answer = self._apply(op)
        except Refusal as refusal:
            answer = refusal.answer
        books.record.events += len(books.events)
        return answer, books.events

    def due(self, now: float) -> list[Expire | Vacate]:
        """What the clock asks for: operations for :meth:`apply` (and the log). To be called at least every second."""
        books = self._books
        books.clock.advance(now)
        processes = books.record.processes
        expired = [
            Expire(who=who, life=processes[who].life, seq=0, oldest=0, stream=stream)
            for who, stream in books.clock.due(processes, self._members())
        ]
        return [*expired, *turning.overdue(books)]

    def next_due(self) -> float:
        """Seconds until leases of rows run out, if nobody says a word; infinite if there are none."""
        return self._books.clock.next_due(self._books.record.processes, self._members())

    def may_give(self, op: AnyOp) -> bool:
        """False if an operation that was given nothing would certainly be given nothing again; far cheaper than to apply it."""
        if not isinstance(op, Lease):
            return True
        book = self._books.book(op.stream)
        return bool(book.record.closed or book.queue(group_of(op.who), frozenset(op.columns)).rows)

    def take_news(self) -> set[str]:
        """Topics (see :func:`~hpcrl.dataplane.ledger.ops.topic`) in which there may be something to read, room to put, an end,
        or another turn, since the last call."""
        news, self._books.news = self._books.news, set()
        return news

    def take_freed(self, owner: str) -> list[str]:
        """Segments of a process, or of nobody (those of adopted blocks), that were emptied since this was last asked."""
        return list(self._books.segments.take_news(owner))

    def figures(self, stream: str = "") -> dict[str, dict[str, Any]]:
        """See :func:`hpcrl.dataplane.ledger.why.figures`."""
        return figures(self._books, stream)

    def holds(self, stream: str, first: int) -> bool:
        """Whether the block of that first row lives."""
        return first in self._books.streams[stream].record.blocks

    def live_refs(self) -> Iterator[LiveBlock]:
        """Every live block, for a snapshot; to be used up before the next operation."""
        for name, book in self._books.streams.items():
            for block in book.record.blocks.values():
                yield LiveBlock(name, block.first, block.rows, dict(block.refs), block.labels, list(block.done))

    def adopt(self, blocks: Iterable[LiveBlock], now: float) -> list[Event]:
        """Take blocks of a snapshot as put by nobody; to be called before any operation, and followed by :meth:`state`.

        Raises:
            ValueError: a stream or a column is unknown, or a row is there already: the snapshot is of another recipe.
        """
        books = self._books
        books.now, books.events = now, []
        for item in blocks:
            book = books.streams.get(item.stream)
            if book is None or not set(item.refs) <= set(book.rules.columns) or book.get(item.first) is not None:
                raise ValueError(
                    f"rows {item.first}… of stream {item.stream!r} with columns {list(item.refs)} do not fit the recipe"
                )
            book.record.orders += 1
            size = sum(ref.size for ref in item.refs.values())
            done = [group for group in item.done if group in book.rules.readers]
            block = Block(
                item.first, item.rows, book.record.orders, size, "", now, dict(item.refs), item.labels, holds={}, done=done
            )
            book.add(block)
            books.segments.add("", 0, item.refs.values())
            book.record.counters.produced += item.rows
            book.record.counters.produced_bytes += size
            books.note("produced", "", 0, item.stream, [block], labels=item.labels, reason="restored")
            books.news.add(item.stream)
        books.record.events += len(books.events)
        return books.events

    def _apply(self, op: Logged) -> Answer:
        if isinstance(op, Asks):
            return self._ask(op)
        if isinstance(op, Expire):
            return reading.expire(self._books, op)
        if isinstance(op, Vacate):
            return turning.vacate(self._books, op)
        process = self._process(op)
        self._books.clock.hear(op.who)
        if op.seq in process.answers:
            self._books.segments.tell_again(op.who)
            return self._told(op, process.answers[op.seq])
        if op.seq < process.oldest:
            return Refused("superseded", f"operation {op.seq} of {op.who} was answered and done with before {process.oldest}")
        answer = self._carry_out(op, process)
        if isinstance(answer, Granted) and self._books.values:
            answer = msgspec.structs.replace(answer, values=list(self._books.values))
        if not durable(op, answer):
            return answer
        process.answers[op.seq] = answer
        process.oldest = max(process.oldest, op.oldest)
        for seq in [seq for seq in process.answers if seq < process.oldest]:
            del process.answers[seq]
        return self._told(op, answer)

    def _told(self, op: Op, answer: Answer) -> Answer:
        """The answer with news of the process's segments; told is not remembered, so that a restart tells again."""
        if isinstance(answer, Granted) and (freed := self._books.segments.take_news(op.who)):
            return msgspec.structs.replace(answer, freed={**answer.freed, **freed})
        return answer

    def _process(self, op: Op) -> ProcessRecord:
        """The process whose operation it is; refuses an older life and one that has not said Hello."""
        processes = self._books.record.processes
        process = processes.get(op.who)
        if process is not None and op.life < process.life:
            raise Refusal(
                Refused("superseded", f"{op.who} of life {op.life} was replaced by its life {process.life}; it must end")
            )
        if process is None or op.life > process.life:
            if not isinstance(op, Hello):
                raise Refusal(Refused("unknown", f"{op.who} of life {op.life} has not said Hello to this ledger"))
            return self._begin(op, process)
        return process

    def _begin(self, op: Hello, before: ProcessRecord | None) -> ProcessRecord:
        books = self._books
        if op.who not in books.rules.names([g for g in [group_of(op.who)] if g in books.rules.processes]):
            raise refuse_schema(f"{op.who} is no process of the run; its groups have {books.rules.processes}")
        books.note("life", op.who, op.life)
        if before is not None:
            books.let_go(op.who, before.life, list(books.streams), "given_back")
            turning.end_life(books, op.who, before.life)
        for book in books.streams.values():
            book.credits.forget(op.who)
        process = ProcessRecord(op.life)
        books.record.processes[op.who] = process
        return process

    def _carry_out(self, op: Logged, process: ProcessRecord) -> Answer:
        books = self._books
        match op:
            case Put():
                return writing.put(books, op)
            case Fill():
                return writing.fill(books, op)
            case Lease():
                return reading.lease(books, op)
            case Draw():
                return reading.draw(books, op)
            case Trained():
                return writing.trained(books, op)
            case Acknowledge():
                return writing.acknowledge(books, op)
            case GiveBack():
                return reading.give_back(books, op)
            case Drop():
                return writing.drop(books, op)
            case Close():
                return writing.close(books, op)
            case Announce():
                return self._announce(op)
            case AskTurn():
                return turning.ask_turn(books, op)
            case EndTurn():
                return turning.end_turn(books, op)
            case Hello():
                return Granted(books.segments.begin(op.who, process.life))
            case Beat():
                return Granted()
        raise TypeError(f"{type(op).__qualname__} is no operation that changes anything")

    def _announce(self, op: Announce) -> Newest:
        books = self._books
        if group_of(op.who) not in books.rules.announcers.get(op.feedback, ()):
            raise refuse_schema(f"feedback stream {op.feedback!r}: {op.who} does not announce on it")
        values = books.record.feedback.setdefault(op.feedback, {})
        values[op.who] = (values[op.who][0] + 1 if op.who in values else 1, op.value)
        return Newest({op.who: values[op.who]})

    def _ask(self, op: Asks) -> Answer:
        books = self._books
        if op.who in books.record.processes and books.process(op.who).life == op.life:
            books.clock.hear(op.who)
        if isinstance(op, AwaitTurn):
            return turning.await_turn(books, op, books.now)
        if isinstance(op, AskDepth):
            return Depths(figures(books, op.stream))
        if isinstance(op, AskWhy):
            return Why(why_row(books, op.row))
        if isinstance(op, AskHeld):
            blocks = books.book(op.stream).record.blocks.values()
            return Held(sorted({prompt for block in blocks for prompt in block.labels.prompts}))
        if op.feedback not in books.rules.announcers:
            raise refuse_schema(f"feedback stream {op.feedback!r} is unknown; there are {sorted(books.rules.announcers)}")
        return Newest(dict(books.record.feedback.get(op.feedback, {})))

    def _members(self) -> dict[str, dict[str, None]]:
        return {
            name: {who: None for draws in book.record.draws.values() for draw in draws.values() for who in draw.members}
            for name, book in self._books.streams.items()
        }
