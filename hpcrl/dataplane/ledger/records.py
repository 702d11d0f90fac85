"""What the ledger remembers: all that must survive its process, and nothing that can be worked out from it.

What there are very many of is left out of Python's search for cycles (``gc=False``): there can be none, and the search would
stop the ledger for long when much is alive.
"""

from __future__ import annotations

import msgspec

from hpcrl.dataplane.ledger.ops import Answer, Labels, Ref

UNTRAINED = -1


class Hold(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A group's lease on a block: of one process, or of a draw.

    Attributes:
        who: process; empty if a draw holds it.
        draw: number of the draw; -1 = none.
    """

    who: str = ""
    draw: int = -1


class Block(msgspec.Struct, array_like=True, gc=False):
    """The rows of one put.

    Attributes:
        order: rises with every put of the stream: age.
        bytes: of all its columns.
        maker: process that put it; empty if it was adopted.
        t: when it was put [Unix s].
        refs: where each column that is there lies.
        holds: by group, who has it under lease.
        done: groups that are through with it.
        version: policy version that trained it.
    """

    first: int
    rows: int
    order: int
    bytes: int
    maker: str
    t: float
    refs: dict[str, Ref]
    labels: Labels
    holds: dict[str, Hold] = {}
    done: list[str] = []
    version: int = UNTRAINED

    @property
    def trained(self) -> bool:
        """Whether it was trained and waits for the acknowledgement."""
        return self.version != UNTRAINED


class DrawRecord(msgspec.Struct, array_like=True):
    """A set that is fixed.

    Attributes:
        shares: first rows of each share's blocks.
        members: processes that asked and live.
    """

    shares: list[list[int]]
    members: dict[str, None]


class Counters(msgspec.Struct):
    """Rows since the start of the run's ledger, by what became of them.

    Attributes:
        dropped: by reason.
        expired: redelivered because a lease ran out.
    """

    produced: int = 0
    produced_bytes: int = 0
    trained: int = 0
    cleared: int = 0
    expired: int = 0
    dropped: dict[str, int] = {}


class StreamRecord(msgspec.Struct):
    """A stream.

    Attributes:
        blocks: live ones by first row, oldest first.
        closed: by process, the life that closed it.
        draws: by group and number.
    """

    blocks: dict[int, Block] = {}
    closed: dict[str, int] = {}
    draws: dict[str, dict[int, DrawRecord]] = {}
    counters: Counters = msgspec.field(default_factory=Counters)
    orders: int = 0


class ProcessRecord(msgspec.Struct):
    """A process.

    Attributes:
        answers: by number of the operation, while the process might ask again.
        held: by stream, first rows of the blocks under its own lease.
        lease_s: by stream, how long a lease lasts without a word.
    """

    life: int
    oldest: int = 0
    answers: dict[int, Answer] = {}
    held: dict[str, dict[int, None]] = {}
    lease_s: dict[str, float] = {}


class SegmentRecord(msgspec.Struct, array_like=True):
    """A shared-memory segment.

    Attributes:
        owner, life: who made it.
        live: refs of live blocks in it.
        released: refs that were in it.
    """

    owner: str
    life: int
    live: int = 0
    released: int = 0


class Stay(msgspec.Struct, frozen=True, array_like=True):
    """A process that takes part in a ring, or asks to.

    Attributes:
        seconds: how long it may be silent.
        host: where it runs.
    """

    life: int
    seconds: float
    host: str = ""


class Handed(msgspec.Struct, frozen=True, array_like=True):
    """What was let go of, and is still held [bytes]; how long that took [s]."""

    freed: int = 0
    left: int = 0
    seconds: float = 0.0


class RingRecord(msgspec.Struct):
    """A ring's token. Never larger than the ring has processes.

    Attributes:
        epoch: of the token; rises each time that a group gets it.
        holder: group that has it; empty if none has.
        since_t: when it got it [Unix s].
        called_t: since when others ask it to let go [Unix s]; 0 = they do not.
        inside: its processes that have not let go.
        been: its processes that have, in this epoch, and their lives.
        leaving: what those let go of.
        asks: processes that want it, in turn.
        giver: group that had it before.
        handed: what that group let go of; seconds from the call, or where there was none, of its release.
        news: JSON from whoever handed it on last and had any.
    """

    epoch: int = 0
    holder: str = ""
    since_t: float = 0.0
    called_t: float = 0.0
    inside: dict[str, Stay] = {}
    been: dict[str, int] = {}
    leaving: Handed = Handed()
    asks: dict[str, Stay] = {}
    giver: str = ""
    handed: Handed = Handed()
    news: str = ""


class LedgerRecord(msgspec.Struct):
    """Everything.

    Attributes:
        feedback: by feedback stream and writer, number and value.
        events: how many were made.
    """

    streams: dict[str, StreamRecord] = {}
    processes: dict[str, ProcessRecord] = {}
    feedback: dict[str, dict[str, tuple[int, str]]] = {}
    segments: dict[str, SegmentRecord] = {}
    rings: dict[str, RingRecord] = {}
    events: int = 0


class LiveBlock(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A live block as a snapshot keeps it.

    Attributes:
        done: groups that are through with it.
    """

    stream: str
    first: int
    rows: int
    refs: dict[str, Ref]
    labels: Labels
    done: list[str]
