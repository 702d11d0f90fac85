"""Operations that hand rows out and take them back."""

from __future__ import annotations

from collections.abc import Sequence

from hpcrl.dataplane.ledger.books import Books, Refusal, held_by_draw, refuse_schema
from hpcrl.dataplane.ledger.draws import balance
from hpcrl.dataplane.ledger.ops import Draw, Expire, GiveBack, Given, Granted, Lease, Leased, Refused
from hpcrl.dataplane.ledger.ready import ReadyQueue
from hpcrl.dataplane.ledger.records import Block, DrawRecord, Hold
from hpcrl.dataplane.ledger.rules import group_of
from hpcrl.dataplane.ledger.streams import StreamBook

# A draw of which nothing is left is remembered until so many newer ones were made, to tell who comes late that he does.
_DRAWS_KEPT = 8


def lease(books: Books, op: Lease) -> Leased:
    """See :class:`Lease`."""
    book, group = books.book(op.stream), group_of(op.who)
    queue = _queue(book, group, op.columns)
    taken: list[Block] = []
    room = op.max_rows
    if queue.rows:
        hold = Hold(op.who)
        for block in book.ready(queue):
            room -= block.rows
            if room < 0:
                break
            book.hold(block, group, hold)
            taken.append(block)
    if not taken:
        return Leased(ended=_ended(books, book, op, queue))
    process = books.process(op.who)
    process.held.setdefault(op.stream, {}).update((block.first, None) for block in taken)
    process.lease_s[op.stream] = op.seconds
    books.note("leased", op.who, op.life, op.stream, taken, reason=",".join(op.columns))
    return Leased(_given(taken, op.columns))


def draw(books: Books, op: Draw) -> Leased:
    """See :class:`Draw`."""
    book, group = books.book(op.stream), group_of(op.who)
    queue = _queue(book, group, op.columns)
    if not 0 <= op.share < op.shares or op.rows < 1:
        raise refuse_schema(f"stream {op.stream!r}: no share {op.share} of {op.shares} in a set of {op.rows} rows")
    if op.draw not in book.record.draws.get(group, {}):
        ended = _ended(books, book, op, queue, rest=True)
        if not queue.rows or (queue.rows < op.rows and not ended):
            return Leased(ended=ended)
        _fix(books, book, op, queue)
    record = book.record.draws[group][op.draw]
    firsts = [first for share in record.shares for first in share]
    if len(record.shares) != op.shares:
        raise refuse_schema(f"draw {op.draw} of stream {op.stream!r} has {len(record.shares)} shares, not {op.shares}")
    if firsts and not held_by_draw(book, group, op.draw, firsts):
        raise Refusal(Refused("lost", f"draw {op.draw} of stream {op.stream!r} is done with; nothing of it is left"))
    record.members[op.who] = None
    books.process(op.who).lease_s[op.stream] = op.seconds
    return Leased(_given(held_by_draw(book, group, op.draw, record.shares[op.share]), op.columns), fixed=True)


def give_back(books: Books, op: GiveBack) -> Granted:
    """See :class:`GiveBack`."""
    book, group = books.book(op.stream), group_of(op.who)
    freed, numbers = [], set()
    for first in op.blocks:
        block = book.get(first)
        hold = None if block is None else block.holds.get(group)
        if block is None or hold is None or not books.mine(book, block, op.who):
            continue
        if hold.draw >= 0:
            numbers.add(hold.draw)
        else:
            del books.process(op.who).held[op.stream][first]
            book.free(block, group)
            freed.append(block)
    for number in sorted(numbers):
        freed += books.leave(book, group, number, op.who)
    books.note("given_back", op.who, op.life, op.stream, freed)
    books.news.add(op.stream)
    return Granted()


def expire(books: Books, op: Expire) -> Granted:
    """See :class:`Expire`."""
    process = books.record.processes.get(op.who)
    if process is not None and process.life == op.life:
        books.let_go(op.who, op.life, [op.stream], "expired")
    return Granted()


def _queue(book: StreamBook, group: str, columns: Sequence[str]) -> ReadyQueue:
    unknown = [column for column in columns if column not in book.rules.columns]
    if unknown or not columns:
        raise refuse_schema(
            f"stream {book.rules.name!r} has no columns {unknown or list(columns)}; it has {book.rules.columns}"
        )
    if group not in book.rules.readers:
        raise refuse_schema(f"stream {book.rules.name!r}: group {group!r} does not read it")
    return book.queue(group, frozenset(columns))


def _ended(books: Books, book: StreamBook, op: Lease | Draw, queue: ReadyQueue, *, rest: bool = False) -> bool:
    """Whether nothing more will come; with ``rest``, nothing more than what is ready."""
    if (queue.rows and not rest) or not books.rules.closers(op.stream, op.columns) <= book.record.closed.keys():
        return False
    group = group_of(op.who)
    draws = book.record.draws.get(group, {})
    for who in books.rules.names([group]) - {op.who}:
        process = books.record.processes.get(who)
        if process is not None and any(not book.record.blocks[first].trained for first in process.held.get(op.stream, ())):
            return False
    return not any(
        not block.trained
        for number, record in draws.items()
        if op.who not in record.members
        for share in record.shares
        for block in held_by_draw(book, group, number, share)
    )


def _fix(books: Books, book: StreamBook, op: Draw, queue: ReadyQueue) -> None:
    group, hold = group_of(op.who), Hold(draw=op.draw)
    taken: list[Block] = []
    rows = 0
    for block in book.ready(queue):
        if rows + block.rows > op.rows:
            break
        book.hold(block, group, hold)
        taken.append(block)
        rows += block.rows
    shares = balance(taken, op.shares, max_tokens=op.max_tokens, quadratic=op.quadratic)
    kept = {block.first for share in shares for block in share}
    for block in taken:
        if block.first not in kept:
            book.free(block, group)
    draws = book.record.draws.setdefault(group, {})
    draws[op.draw] = DrawRecord([[block.first for block in share] for share in shares], {})
    for number in [number for number in draws if number <= op.draw - _DRAWS_KEPT]:
        if not held_by_draw(book, group, number, [first for share in draws[number].shares for first in share]):
            del draws[number]
    kept_blocks = [block for block in taken if block.first in kept]
    books.note("leased", op.who, op.life, op.stream, kept_blocks, version=op.draw, reason=",".join(op.columns))


def _given(blocks: Sequence[Block], columns: Sequence[str]) -> list[Given]:
    return [Given(block.first, block.rows, [block.refs[column] for column in columns]) for block in blocks]
