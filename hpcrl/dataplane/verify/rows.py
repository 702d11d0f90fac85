"""Rules of a row's way through its stream: made once, held by one at a time, filled once, gone only for a reason."""

from __future__ import annotations

from hpcrl.dataplane.ledger.events import Event
from hpcrl.dataplane.ledger.ops import Labels
from hpcrl.dataplane.rowids import COUNTER_BITS, WRITER_BITS
from hpcrl.dataplane.verify.blocks import BACK, DONE, EXPIRED, LIVE, Block, Hold
from hpcrl.dataplane.verify.found import Violation
from hpcrl.dataplane.verify.prompts import Pairs
from hpcrl.dataplane.verify.stream import Stream

# A trainer publishes the version that a step makes just before it says that the step's rows were trained.
IN_FLIGHT = 1
# What the ledger gives as the reason of rows that it has from a snapshot.
RESTORED = "restored"
# So many of what may turn out to be a violation are kept.
MANY = 1000


class RowRules:
    """Applies events of one stream, all but training and its acknowledgement.

    Args:
        lives: newest life of each process, kept by the caller.
    """

    def __init__(self, stream: Stream, lives: dict[str, int]) -> None:
        self._stream, self._found, self._lives = stream, stream.findings, lives
        self._columns: dict[str, int] = {}
        self._masks: dict[str, int] = {}
        self._ever_filled = 0
        # Of each column that was given before it was known to be one that is filled: the first row and where it shows.
        self._given = 0
        self._unfilled: dict[int, Violation] = {}
        self._too_new: list[Violation] = []
        # By the upper bits of the row ids, which are of one life of one process.
        self._makers: dict[int, str] = {}

    def produced(self, event: Event) -> None:
        """New rows."""
        stream, found, offset = self._stream, self._found, 0
        for first, rows in event.blocks:
            if event.reason == RESTORED:
                self._restored(first, rows, event.labels, offset)
                offset += rows
                continue
            stream.counts.produced += rows
            made_by = first >> COUNTER_BITS
            if made_by >> WRITER_BITS != event.life or self._makers.setdefault(made_by, event.who) != event.who:
                what = f"{event.who} put them in its life {event.life}, which their ids are not of"
                found.add("ids", what, row=first)
            if first in stream.live or stream.gone.what(first) or stream.gone_before.what(first):
                found.add("ids", f"{event.who} put rows that had been put before", row=first)
            else:
                block = stream.live[first] = Block(first, rows)
                self._label(block, event.labels, offset)
                self._check_made(block, event.labels, offset)
            offset += rows

    def leased(self, event: Event, group: str) -> None:
        """Rows were given to a process, or fixed as a draw of its group: then the event names the draw as its version."""
        stream, found, asked, shared = self._stream, self._found, self._mask(event.reason), event.version >= 0
        for first, rows in event.blocks:
            stream.counts.leased += rows
            block = stream.find(first, rows, "leases", f"leased to {event.who}")
            if block is None:
                continue
            hold = block.holds.get(group)
            late: tuple[str, ...] = ()
            if hold is not None:
                late = hold.late
                problem = ""
                if hold.state == DONE:
                    problem = f"leased to {event.who} though its group was done with it"
                elif hold.state == LIVE and not self._is_dead(hold):
                    problem = f"leased to {event.who} while {hold.who} held it"
                if problem:
                    found.add("leases", problem, row=first, prompt=block.prompt)
            # What a snapshot had of a block is not known.
            if not block.restored and (unfilled := asked & ~block.filled & ~self._given):
                self._check_unfilled(event, block, unfilled)
            block.asked |= asked
            block.holds[group] = Hold(event.who, event.life, shared, late)

    def filled(self, event: Event, group: str) -> None:
        """Columns were added; the group is through with the rows."""
        columns = self._mask(event.reason)
        self._ever_filled |= columns
        for first, rows in event.blocks:
            self._stream.counts.filled += rows
            block = self._stream.find(first, rows, "filled", f"filled by {event.who}")
            if block is None:
                continue
            hold, prompt = block.holds.get(group), block.prompt
            # Whoever of the group has ever held it may: the first to fill a column wins.
            if hold is None:
                self._found.add("held", f"filled by {event.who}, whose group did not hold it", row=first, prompt=prompt)
            if twice := self._names(columns & block.filled):
                self._found.add("filled", f"columns {twice} were filled again by {event.who}", row=first, prompt=prompt)
            if early := self._names(columns & block.asked):
                self._found.add("filled", f"columns {early} were read before {event.who} filled them", row=first, prompt=prompt)
            block.filled |= columns
            if hold is not None:
                hold.state = DONE

    def finish(self) -> None:
        """No more events come: which columns are filled, rather than put, is known now, and whether training is missing."""
        for columns, violation in self._unfilled.items():
            if columns & self._ever_filled:
                self._found.keep(violation)
        if self._stream.whole:
            for violation in self._too_new:
                self._found.keep(violation)

    def expired(self, event: Event, group: str) -> None:
        """A lease ran out."""
        self._end_lease(event, group, EXPIRED, "the lease ran out of")

    def given_back(self, event: Event, group: str) -> None:
        """Rows are free again."""
        self._end_lease(event, group, BACK, "given back by")

    def acknowledged(self, event: Event, group: str, block: Block) -> None:
        """A group is through with rows that it has not trained."""
        hold = block.holds.get(group)
        if hold is None or not hold.allows(event.who):
            holder = f"{hold.who} held" if hold is not None and hold.state == LIVE else f"{event.who} did not hold"
            self._found.add("held", f"acknowledged by {event.who}; {holder} it", row=block.first, prompt=block.prompt)
        if hold is None:
            hold = block.holds[group] = Hold(event.who, event.life, False)
        hold.state = DONE

    def cleared(self, event: Event, group: str) -> None:
        """Rows are gone, as they have been acknowledged."""
        stream = self._stream
        for first, rows in event.blocks:
            if first not in stream.live and first in stream.gone.dropped:
                continue
            block = stream.find(first, rows, "ids", f"cleared by {event.who}")
            if block is None:
                continue
            stream.counts.cleared += rows
            del stream.live[first]
            if block.settled:
                stream.gone.trained.add(first, rows)
                continue
            if block.version >= 0:
                self._lost(block, "cleared though its training was not acknowledged")
            elif (hold := block.holds.get(group)) is not None and hold.state == DONE:
                # Right where a stream is not trained on, which only its end shows.
                stream.untrained.append((first, self._found.number, self._found.attempt))
                del stream.untrained[MANY:]
            else:
                self._lost(block, f"cleared by {event.who}, whose group had not acknowledged it")
            stream.gone.dropped.add(first, rows)
            self._unbook(block, dropped=False)

    def dropped(self, event: Event, group: str) -> None:
        """Rows are gone untrained."""
        stream = self._stream
        for first, rows in event.blocks:
            block = stream.find(first, rows, "lost", f"dropped by {event.who}")
            if block is None:
                continue
            stream.counts.dropped[event.reason] = stream.counts.dropped.get(event.reason, 0) + rows
            if not event.reason:
                self._lost(block, f"dropped by {event.who} without a reason")
            maker = self._makers.get(first >> COUNTER_BITS)
            if group not in block.holds and maker is not None and group != maker.rpartition(".")[0]:
                what = f"dropped by {event.who}, whose group neither held nor made it"
                self._found.add("held", what, row=first, prompt=block.prompt)
            if block.version >= 0 and not block.settled and block.life == stream.training.life == event.life:
                self._lost(block, f"dropped by {event.who} after it was trained")
            del stream.live[first]
            (stream.gone.trained if block.settled else stream.gone.dropped).add(first, rows)
            if not block.settled:
                self._unbook(block, dropped=True)

    def _check_unfilled(self, event: Event, block: Block, columns: int) -> None:
        """Columns that were given without having been filled: right where the put had them, which only the end shows."""
        early = columns & self._ever_filled
        self._given |= columns & ~early
        what = f"columns {self._names(early or columns)} were given to {event.who} before they were filled"
        violation = self._found.violation("filled", what, row=block.first, prompt=block.prompt)
        if early:
            self._found.keep(violation)
        else:
            self._unfilled[columns] = violation

    def _restored(self, first: int, rows: int, labels: Labels, offset: int) -> None:
        """Rows of an earlier attempt are in this one's stream."""
        stream = self._stream
        if (block := stream.live.get(first)) is not None and not block.left:
            self._found.add("ids", "restored though the rows are there", row=first)
            return
        block, fresh = stream.restored(first, rows)
        if not block.pairs:
            self._label(block, labels, offset, waiting=not block.settled)
        if fresh:
            # The end of an earlier attempt's history may be lost with its node.
            stream.counts.produced += rows

    def _label(self, block: Block, labels: Labels, offset: int, *, waiting: bool = True) -> None:
        of_block = slice(offset, offset + block.rows)
        block.pairs = _pairs(labels.prompts[of_block])
        if waiting:
            self._stream.book.waiting(block.pairs)
        block.newest = max(labels.last_versions[of_block], default=-1)
        # A row without a token has no version.
        made = [version for version in labels.first_versions[of_block] if version >= 0]
        if made:
            block.oldest = min(made)
            block.oldest_row = block.first + labels.first_versions[of_block].index(block.oldest)

    def _check_made(self, block: Block, labels: Labels, offset: int) -> None:
        stream, found = self._stream, self._found
        known = stream.training.peak + 1
        if block.newest > known + IN_FLIGHT and stream.whole:
            row = block.first + labels.last_versions[offset : offset + block.rows].index(block.newest)
            what = f"made by version {block.newest}, when the newest was {known}"
            self._too_new.append(found.violation("versions", what, row=row, prompt=block.prompt))
            del self._too_new[MANY:]
        if stream.limits.needed is not None and block.oldest >= 0:
            for prompt, _ in block.pairs:
                needed = stream.limits.needed(prompt)
                if block.oldest < needed:
                    what = f"made by version {block.oldest}; it had to wait for version {needed}"
                    found.add("pacing", what, row=block.oldest_row, prompt=prompt)

    def _end_lease(self, event: Event, group: str, state: int, how: str) -> None:
        for first, rows in event.blocks:
            block = self._stream.find(first, rows, "held", f"{'expired' if state == EXPIRED else 'given back'}, {event.who}'s,")
            if block is None:
                continue
            hold = block.holds.get(group)
            if hold is None or hold.state != LIVE or not (hold.shared or hold.who == event.who):
                self._found.add("held", f"{how} {event.who}, which did not hold it", row=first, prompt=block.prompt)
                continue
            hold.state = state
            if state == EXPIRED:
                hold.late = (*hold.late, event.who)

    def _is_dead(self, hold: Hold) -> bool:
        return self._lives.get(hold.who, hold.life) > hold.life

    def _lost(self, block: Block, what: str) -> None:
        step = block.version + 1 if block.version >= 0 else None
        self._found.add("lost", what, row=block.first, prompt=block.prompt, step=step)

    def _unbook(self, block: Block, *, dropped: bool) -> None:
        if block.version >= 0:
            self._stream.book.untrained(block.pairs, waiting=True)
        self._stream.book.gone(block.pairs, dropped=dropped)

    def _mask(self, columns: str) -> int:
        mask = self._masks.get(columns)
        if mask is None:
            mask = 0
            for name in filter(None, columns.split(",")):
                mask |= 1 << self._columns.setdefault(name.strip(), len(self._columns))
            self._masks[columns] = mask
        return mask

    def _names(self, mask: int) -> str:
        return ",".join(name for name, bit in self._columns.items() if mask >> bit & 1)


def _pairs(prompts: list[int]) -> Pairs:
    """Each prompt with its number of rows, in the order of their first rows."""
    if not prompts:
        return ()
    if prompts.count(prompts[0]) == len(prompts):
        return ((prompts[0], len(prompts)),)
    return tuple((prompt, prompts.count(prompt)) for prompt in dict.fromkeys(prompts))
