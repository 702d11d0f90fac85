"""Operations that bring rows in, add to them, and take them out."""

from __future__ import annotations

from collections.abc import Sequence

from hpcrl.dataplane.ledger.books import Books, Refusal, refuse_schema
from hpcrl.dataplane.ledger.ops import Acknowledge, Close, Drop, Fill, Granted, Put, Refused, Trained, Wait
from hpcrl.dataplane.ledger.records import Block, Hold
from hpcrl.dataplane.ledger.rules import group_of
from hpcrl.dataplane.ledger.streams import StreamBook
from hpcrl.dataplane.ledger.why import why_full

# Of a process that has never said how long its leases last [s].
LEASE_S = 30.0


def put(books: Books, op: Put) -> Granted | Wait:
    """See :class:`Put`."""
    book = books.book(op.stream)
    _check_put(book, op)
    _check_open(book, op)
    if not book.credits.admit(op.who, op.rows, op.bytes, books.clock.now):
        return Wait(why_full(book, op.rows, op.bytes, books.now))
    book.record.closed.pop(op.who, None)
    book.record.orders += 1
    block = Block(op.first, op.rows, book.record.orders, op.bytes, op.who, books.now, dict(op.refs), op.labels)
    book.add(block)
    book.record.counters.produced += op.rows
    book.record.counters.produced_bytes += op.bytes
    books.segments.add(op.who, op.life, op.refs.values())
    books.note("produced", op.who, op.life, op.stream, [block], labels=op.labels)
    books.news.add(op.stream)
    return Granted()


def fill(books: Books, op: Fill) -> Granted:
    """See :class:`Fill`."""
    book, group = books.book(op.stream), group_of(op.who)
    for column in sorted({column for refs in op.blocks.values() for column in refs}):
        if group not in book.rules.fillers.get(column, ()):
            raise refuse_schema(f"stream {op.stream!r}: group {group!r} may not fill column {column!r}")
    _check_open(book, op)
    book.record.closed.pop(op.who, None)
    filled = []
    for first, refs in op.blocks.items():
        block = book.get(first)
        if block is None:
            books.refuse(op.who, op.life, refs.values())
            continue
        fresh = {column: ref for column, ref in refs.items() if column not in block.refs}
        books.segments.add(op.who, op.life, fresh.values())
        late = [ref for column, ref in refs.items() if column in block.refs]
        books.refuse(op.who, op.life, late, kept=fresh.values())
        if fresh:
            book.fill(block, fresh)
            filled.append(block)
        if group in book.rules.readers:
            books.finish(book, block, group)
    columns = ",".join(dict.fromkeys(column for refs in op.blocks.values() for column in refs))
    books.note("filled", op.who, op.life, op.stream, filled, reason=columns)
    books.news.add(op.stream)
    return Granted()


def trained(books: Books, op: Trained) -> Granted:
    """See :class:`Trained`."""
    book, process = _final(books, op), books.process(op.who)
    blocks = _own(books, book, op.who, op.blocks, gone_is_lost=True)
    for block in blocks:
        if book.rules.final not in block.holds:
            # Its lease ran out while it was training, and nobody has had it since.
            book.hold(block, book.rules.final, Hold(op.who))
            process.held.setdefault(op.stream, {})[block.first] = None
            process.lease_s.setdefault(op.stream, LEASE_S)
        book.train(block, op.version)
    books.note("trained", op.who, op.life, op.stream, blocks, version=op.version)
    books.news.add(op.stream)
    return Granted()


def acknowledge(books: Books, op: Acknowledge) -> Granted:
    """See :class:`Acknowledge`."""
    book, group = books.book(op.stream), group_of(op.who)
    if group not in book.rules.readers:
        raise refuse_schema(f"stream {op.stream!r}: group {group!r} does not read it")
    if group == book.rules.final:
        blocks = _own(books, book, op.who, op.blocks)
        books.note("acknowledged", op.who, op.life, op.stream, blocks)
        books.remove(book, blocks)
        book.record.counters.cleared += sum(block.rows for block in blocks)
        books.note("cleared", op.who, op.life, op.stream, blocks)
        return Granted()
    done = []
    for first in op.blocks:
        block = book.get(first)
        if block is not None and group not in block.done and books.mine(book, block, op.who):
            books.finish(book, block, group)
            done.append(block)
    books.note("acknowledged", op.who, op.life, op.stream, done)
    books.news.add(op.stream)
    return Granted()


def drop(books: Books, op: Drop) -> Granted:
    """See :class:`Drop`."""
    book, group = books.book(op.stream), group_of(op.who)
    if group not in (*book.rules.readers, *book.rules.creators):
        raise refuse_schema(f"stream {op.stream!r}: group {group!r} neither reads nor creates it, so it may not drop rows")
    blocks = _own(books, book, op.who, op.blocks)
    if done := next((block for block in blocks if block.trained), None):
        raise refuse_schema(
            f"stream {op.stream!r}: rows {done.first}… were trained by version {done.version}; acknowledge them"
        )
    books.remove(book, blocks)
    rows = sum(block.rows for block in blocks)
    if rows:
        book.record.counters.dropped[op.reason] = book.record.counters.dropped.get(op.reason, 0) + rows
    books.note("dropped", op.who, op.life, op.stream, blocks, reason=op.reason)
    return Granted()


def close(books: Books, op: Close) -> Granted:
    """See :class:`Close`."""
    book, group = books.book(op.stream), group_of(op.who)
    if group not in book.rules.creators and all(group not in fillers for fillers in book.rules.fillers.values()):
        raise refuse_schema(f"stream {op.stream!r}: group {group!r} does not write it, so it has nothing to close")
    book.record.closed[op.who] = op.life
    book.credits.forget(op.who)
    books.news.add(op.stream)
    return Granted()


def _check_put(book: StreamBook, op: Put) -> None:
    rules, where = book.rules, f"stream {op.stream!r}"
    if group_of(op.who) not in rules.creators:
        raise refuse_schema(f"{where}: group {group_of(op.who)!r} may not put rows; its role does not create them")
    if set(op.refs) != set(rules.created):
        raise refuse_schema(f"{where}: expected columns {list(rules.created)}, got {list(op.refs)}")
    if not 1 <= op.rows <= rules.block_rows:
        raise refuse_schema(f"{where}: a block has 1 to {rules.block_rows} rows (block_rows), got {op.rows}")
    if op.bytes > op.rows * rules.max_row_bytes:
        raise refuse_schema(f"{where}: {op.rows} rows of {op.bytes} bytes are over max_row_bytes={rules.max_row_bytes} a row")
    if book.get(op.first) is not None:
        raise refuse_schema(f"{where}: row {op.first} is there already; row ids are used once")


def _check_open(book: StreamBook, op: Put | Fill) -> None:
    if book.record.closed.get(op.who) == op.life:
        raise Refusal(Refused("closed", f"stream {op.stream!r} was closed by this process; it takes no more rows"))


def _final(books: Books, op: Trained) -> StreamBook:
    book = books.book(op.stream)
    if group_of(op.who) != book.rules.final:
        raise refuse_schema(f"stream {op.stream!r}: group {group_of(op.who)!r} is not its final reader, {book.rules.final!r}")
    return book


def _own(books: Books, book: StreamBook, who: str, firsts: Sequence[int], *, gone_is_lost: bool = False) -> list[Block]:
    """Live blocks, each once, that no other process of the group holds; refuses if one does."""
    found = {first: book.get(first) for first in firsts}
    blocks = [block for block in found.values() if block is not None]
    lost = [block.first for block in blocks if not books.mine(book, block, who)]
    if gone_is_lost:
        lost += [first for first, block in found.items() if block is None]
    if lost:
        raise Refusal(
            Refused(
                "lost",
                f"{len(lost)} of {len(found)} blocks of stream {book.rules.name!r} (first row {lost[0]}) are no longer held by "
                f"{who}: its lease ran out and another process of group {group_of(who)!r} has had them; what was done with "
                "them here must not count",
            )
        )
    return blocks
