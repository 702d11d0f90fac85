"""What the checker remembers of the rows that live, and of those that do not, for one stream."""

from __future__ import annotations

from hpcrl.dataplane.verify.intervals import IntervalSet
from hpcrl.dataplane.verify.prompts import Pairs

LIVE, EXPIRED, BACK, DONE = range(4)


class Hold:
    """A group's claim on a block.

    Attributes:
        who, life: process that holds it, or did.
        shared: many of the group hold it together: it is of a draw.
        state: LIVE; EXPIRED, ran out; BACK, given back; DONE, the group is through with the block.
        late: processes whose lease ran out; they may still say that they are through, while nobody else holds it.
    """

    __slots__ = ("late", "life", "shared", "state", "who")

    def __init__(self, who: str, life: int, shared: bool, late: tuple[str, ...] = ()) -> None:
        self.who, self.life, self.shared, self.late, self.state = who, life, shared, late, LIVE

    def allows(self, who: str) -> bool:
        """Whether a process of the group may say that it is through."""
        if self.state == LIVE:
            return self.shared or who == self.who
        return self.state in (EXPIRED, BACK) and (who in self.late or (self.shared and self.state == EXPIRED))


class Block:
    """The rows of one put.

    Attributes:
        pairs: its prompts; empty if they are not known.
        oldest, newest: the versions that made its rows, -1 = not known; ``oldest_row`` is the row that the oldest made.
        filled, asked: columns that were filled and that a reader was given, a bit each.
        holds: by group.
        version: that trained it, -1 = none; ``by`` and ``life`` are the process that did.
        settled: its training is for good; ``acked``: an acknowledgement has said so.
        left: it belongs to an earlier attempt and was not restored in this one; ``restored``: it was.
    """

    __slots__ = (
        "acked",
        "asked",
        "by",
        "filled",
        "first",
        "holds",
        "left",
        "life",
        "newest",
        "oldest",
        "oldest_row",
        "pairs",
        "restored",
        "rows",
        "settled",
        "version",
    )

    def __init__(self, first: int, rows: int, pairs: Pairs = ()) -> None:
        self.first, self.rows, self.pairs = first, rows, pairs
        self.oldest, self.newest, self.oldest_row = -1, -1, first
        self.filled = self.asked = 0
        self.holds: dict[str, Hold] = {}
        self.version, self.by, self.life = -1, "", -1
        self.settled = self.acked = self.left = self.restored = False

    @property
    def prompt(self) -> int | None:
        """Its first prompt, for messages."""
        return self.pairs[0][0] if self.pairs else None


class Gone:
    """Rows that are not live any more, by what became of them.

    Attributes:
        trained: cleared, their training being acknowledged.
        dropped: with a reason, or cleared untrained.
        discarded: with their attempt, after others of the same prompt were trained.
    """

    def __init__(self) -> None:
        self.trained, self.dropped, self.discarded = IntervalSet(), IntervalSet(), IntervalSet()

    def what(self, first: int) -> str:
        """What became of a row, in words; empty if it is not among these."""
        for rows, words in (
            (self.trained, "trained and cleared"),
            (self.dropped, "dropped"),
            (self.discarded, "discarded with its attempt"),
        ):
            if first in rows:
                return words
        return ""

    def update(self, other: Gone) -> None:
        """Add all of another."""
        self.trained.update(other.trained)
        self.dropped.update(other.dropped)
        self.discarded.update(other.discarded)
