"""Operations on the rings' tokens."""

from __future__ import annotations

from collections.abc import Iterable

from hpcrl.dataplane.ledger.books import Books, Refusal, refuse_schema
from hpcrl.dataplane.ledger.ops import Granted, Refused, ring_topic
from hpcrl.dataplane.ledger.records import Handed, Stay
from hpcrl.dataplane.ledger.rings import Ring
from hpcrl.dataplane.ledger.rules import group_of
from hpcrl.dataplane.ledger.turns import AskTurn, AwaitTurn, EndTurn, Turn, Vacate


def ask_turn(books: Books, op: AskTurn) -> Granted:
    """See :class:`AskTurn`."""
    _ring(books, op).ask(op.who, Stay(op.life, op.seconds, op.host), books.now)
    books.news.add(ring_topic(op.ring))
    return Granted()


def await_turn(books: Books, op: AwaitTurn, now: float) -> Turn:
    """See :class:`AwaitTurn`."""
    ring = _ring(books, op)
    turn = ring.stands(op.who, op.life, op.epoch, now)
    if turn is None:
        raise Refusal(_over(ring, op.who, op.epoch))
    return turn


def end_turn(books: Books, op: EndTurn) -> Granted:
    """See :class:`EndTurn`."""
    ring = _ring(books, op)
    if not ring.leave(op.who, op.life, op.epoch, Handed(op.freed, op.left, op.took_s), op.news, books.now):
        raise Refusal(_over(ring, op.who, op.epoch))
    books.news.add(ring_topic(op.ring))
    return Granted()


def vacate(books: Books, op: Vacate) -> Granted:
    """See :class:`Vacate`."""
    books.rings[op.ring].vacate(op.who, op.life, books.now)
    books.news.add(ring_topic(op.ring))
    return Granted()


def end_life(books: Books, who: str, life: int) -> None:
    """A process has ended: its memory is free."""
    for name, ring in books.rings.items():
        ring.vacate(who, life, books.now)
        books.news.add(ring_topic(name))


def overdue(books: Books) -> Iterable[Vacate]:
    """Operations that take the token from processes that were silent for too long."""
    for name, ring in books.rings.items():
        for who, life in ring.overdue(books.clock):
            yield Vacate(who=who, life=life, seq=0, oldest=0, ring=name)


def _ring(books: Books, op: AskTurn | AwaitTurn | EndTurn) -> Ring:
    if op.ring not in books.rings:
        raise refuse_schema(f"ring {op.ring!r} is unknown or has no token; there are {sorted(books.rings)}")
    ring = books.rings[op.ring]
    if group_of(op.who) not in ring.rules.members:
        raise refuse_schema(f"ring {op.ring!r}: {op.who} is of none of its groups, which are {list(ring.rules.members)}")
    return ring


def _over(ring: Ring, who: str, epoch: int) -> Refused:
    record, rules = ring.record, ring.rules
    held = f"; {record.holder} has it, epoch {record.epoch}" if record.holder else ""
    if not epoch:
        return Refused("stale", f"{who} neither has the token of ring {rules.name!r} nor asks for it{held}")
    return Refused("stale", f"the turn of {who} in ring {rules.name!r}, epoch {epoch}, is over{held}")
