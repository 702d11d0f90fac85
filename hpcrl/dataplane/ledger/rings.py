"""Whose turn it is on GPUs that groups share: the token of a ring, and how it is handed on. Pure.

At most one group has the token. Its processes that take part are *inside*; once the last of them has let go, the group that
asked first gets the token under the next epoch, and the ring's fallback where nobody asks. The fallback is *called* as soon as
another group asks; any other group keeps the token until its processes have let go by themselves.
"""

from __future__ import annotations

from hpcrl.dataplane.ledger.clock import LeaseClock
from hpcrl.dataplane.ledger.records import Handed, RingRecord, Stay
from hpcrl.dataplane.ledger.rules import RingRules, group_of
from hpcrl.dataplane.ledger.turns import Turn


class Ring:
    """Moves the token by what processes say."""

    def __init__(self, rules: RingRules, record: RingRecord) -> None:
        self.rules, self.record = rules, record

    @property
    def called(self) -> bool:
        """Whether the group that has the token is to let go."""
        return self.record.called_t > 0

    def ask(self, who: str, stay: Stay, now: float) -> None:
        """A process wants its group to have the token. One whose group has it enters, once in an epoch; of the fallback only
        while it is not called, as it would have to leave at once."""
        record, group = self.record, group_of(who)
        may_enter = not self.called if group == self.rules.fallback else who not in record.been
        if who in record.inside or (group == record.holder and record.inside and may_enter):
            record.inside[who] = stay
            return
        record.asks[who] = stay
        self._settle(now)

    def leave(self, who: str, life: int, epoch: int, part: Handed, news: str, now: float) -> bool:
        """A process has let go. False if its turn is over already: others may have the token, and nothing is changed.

        Args:
            part: what it let go of.
            news: JSON for those who get the token next; empty keeps what was said before.
        """
        record = self.record
        stay = record.inside.get(who)
        if stay is None or stay.life != life or epoch != record.epoch:
            return False
        del record.inside[who]
        record.been[who] = life
        leaving = record.leaving
        record.leaving = Handed(
            freed=leaving.freed + part.freed, left=leaving.left + part.left, seconds=max(leaving.seconds, part.seconds)
        )
        record.news = news or record.news
        self._settle(now)
        return True

    def vacate(self, who: str, life: int, now: float) -> None:
        """A life of a process has ended, or was silent for too long: it neither holds nor asks."""
        record = self.record
        for book in (record.inside, record.asks):
            if who in book and book[who].life <= life:
                del book[who]
        record.been.pop(who, None)
        self._settle(now)

    def overdue(self, clock: LeaseClock) -> list[tuple[str, int]]:
        """Processes, and their lives, that hold or ask and were silent for longer than they said."""
        stays = {**self.record.asks, **self.record.inside}
        return [(who, stay.life) for who, stay in stays.items() if clock.silence(who) > stay.seconds]

    def stands(self, who: str, life: int, epoch: int, now: float) -> Turn | None:
        """How the ring stands for a process; None if its turn is over, or it never asked for one.

        Args:
            epoch: of the token that it has; 0 = it waits for one.
        """
        record = self.record
        stay = record.inside.get(who)
        has = stay is not None and stay.life == life
        asks = who in record.asks and record.asks[who].life == life
        if not (has and epoch in (0, record.epoch)) and not (asks and not epoch):
            return None
        return Turn(
            settled=self.called if epoch else has,
            epoch=record.epoch,
            holder=record.holder,
            inside={name: one.host for name, one in record.inside.items()},
            held_s=now - record.since_t if record.holder else 0.0,
            called_s=now - record.called_t if self.called else 0.0,
            giver=record.giver,
            freed=record.handed.freed,
            left=record.handed.left,
            gave_s=record.handed.seconds,
            news=record.news,
        )

    def _settle(self, now: float) -> None:
        record, fallback = self.record, self.rules.fallback
        first = next((group for who in record.asks if (group := group_of(who)) != fallback), "")
        if record.inside:
            if record.holder == fallback and first and not self.called:
                record.called_t = now
            elif not first:
                # Whoever asked is gone.
                record.called_t = 0.0
            return
        if record.holder:
            # A group that hands on without having been called did so as long as its release took.
            leaving = record.leaving
            seconds = now - record.called_t if self.called else leaving.seconds
            record.giver, record.handed = record.holder, Handed(freed=leaving.freed, left=leaving.left, seconds=seconds)
        group = first or (fallback if record.asks else "")
        record.holder, record.called_t, record.leaving, record.been = group, 0.0, Handed(), {}
        if group:
            record.epoch += 1
            record.since_t = now
            record.inside = {who: stay for who, stay in record.asks.items() if group_of(who) == group}
            record.asks = {who: stay for who, stay in record.asks.items() if who not in record.inside}
