"""What a process says to the ledger, and what the ledger answers.

Every operation is idempotent by ``(who, life, seq)``: one that is sent again, because its answer was lost, gets its first
answer again, or, where it had changed nothing, is looked at again. All of them are plain values of msgpack, so that the same
bytes travel and stand in the write-ahead log.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from hpcrl.dataplane.ledger.op import Op as Op
from hpcrl.dataplane.ledger.turns import AskTurn, AwaitTurn, EndTurn, Turn, Vacate


class Ref(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where the packed bytes of one column of one block lie.

    Attributes:
        kind: ``shm``: ``size`` bytes at ``offset`` of segment ``where`` on node ``node``; ``tq``: value ``index`` of field
            ``where`` in TransferQueue's storage; ``inline``: ``data`` itself; ``memory``: object ``index`` of this process.
    """

    kind: Literal["shm", "tq", "inline", "memory"]
    size: int
    where: str = ""
    offset: int = 0
    index: int = 0
    node: str = ""
    data: bytes = b""


class Labels(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the history and the balance know of a block's rows; a list has an entry for each row, or none at all.

    Attributes:
        prompts: number of each row's prompt.
        first_versions, last_versions: span of the policy versions that made each row.
        tokens: length of each row.
    """

    prompts: list[int] = []
    first_versions: list[int] = []
    last_versions: list[int] = []
    tokens: list[int] = []


class Given(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A block that was leased: its rows are ``first`` to ``first + rows - 1``; refs in the order of the columns asked for."""

    first: int
    rows: int
    refs: list[Ref]


class Hello(Op, frozen=True, kw_only=True):
    """A process begins a life: what earlier ones held under lease is given back."""


class Put(Op, frozen=True, kw_only=True):
    """New rows ``first`` to ``first + rows - 1`` with all the columns of a put; answered by Granted, or by Wait.

    The same operation is sent again after Wait; nothing was changed then but the process's place in line.

    Attributes:
        bytes: of all the columns, packed.
    """

    stream: str
    first: int
    rows: int
    refs: dict[str, Ref]
    bytes: int
    labels: Labels = Labels()


class Fill(Op, frozen=True, kw_only=True):
    """Further columns of blocks, by first row; acknowledges the lease of the caller's group on them, whoever holds it.

    A column that a block has already is left as it is: the first to fill it was another holder of the same lease. Blocks
    that are gone are no error either. Filled bytes count against the stream's capacity, and never wait for room.
    """

    stream: str
    blocks: dict[int, dict[str, Ref]]


class Lease(Op, frozen=True, kw_only=True):
    """Up to ``max_rows`` rows in whole blocks that have all the columns; answered by Leased.

    Attributes:
        seconds: how long the lease lasts without a word of the holder; every operation of its process renews it.
    """

    stream: str
    columns: list[str]
    max_rows: int
    seconds: float


class Draw(Op, frozen=True, kw_only=True):
    """Share ``share`` of ``shares`` of the ``draw``-th set of ``rows`` rows; answered by Leased.

    The first who asks fixes the set and its shares, balanced by length; every other of the same draw gets the same, whoever
    asks (tensor-parallel peers ask for the same share). The set is the oldest blocks that fit into ``rows``: exactly so many
    rows where they are a multiple of every block's, and what is left at the end of the stream. A share may be empty where
    there are fewer blocks than shares.

    Everybody who asked is a member of the draw, and its lease lasts while one member lives: a member that is silent for
    ``seconds``, begins a new life or gives the blocks back leaves; when the last has left, all its blocks are free again.

    Attributes:
        max_tokens: no share may hold more tokens than this, 0 = no limit; a set that would is cut to fewer blocks, of which
            one at least is left.
        quadratic: cost of a row of t tokens is ``t + quadratic * t * t``.
    """

    stream: str
    columns: list[str]
    draw: int
    rows: int
    share: int
    shares: int
    seconds: float
    max_tokens: int = 0
    quadratic: float = 0.0


class Trained(Op, frozen=True, kw_only=True):
    """Blocks of the final reader were trained on: they count no longer against the capacity, and stay until acknowledged.

    Refused as ``lost`` where another holds one or it is gone: the rows of this step were trained by somebody else.
    """

    stream: str
    blocks: list[int]
    version: int


class Acknowledge(Op, frozen=True, kw_only=True):
    """The caller's group is done with blocks; those of the final reader are cleared. Blocks that are gone are no error.

    A block whose lease ran out and that nobody else has is acknowledged all the same. One that another process of the group
    holds by now is left to it; the final reader is refused then, as ``lost``.
    """

    stream: str
    blocks: list[int]


class GiveBack(Op, frozen=True, kw_only=True):
    """Blocks go to whoever of the group asks next; those that the caller does not hold are no error."""

    stream: str
    blocks: list[int]


class Drop(Op, frozen=True, kw_only=True):
    """Blocks are cleared untrained, by a policy; counted by reason."""

    stream: str
    blocks: list[int]
    reason: str


class Close(Op, frozen=True, kw_only=True):
    """This process will put or fill no more of the stream, unless a later life of it does."""

    stream: str


class Announce(Op, frozen=True, kw_only=True):
    """Replace this process's newest value, JSON, on a feedback stream; answered by Newest with that one."""

    feedback: str
    value: str


class AskNewest(Op, frozen=True, kw_only=True):
    """The newest value of every writer of a feedback stream; answered by Newest. Not logged."""

    feedback: str


class AskHeld(Op, frozen=True, kw_only=True):
    """Numbers of the prompts whose rows live in a stream; answered by Held. Not logged."""

    stream: str


class AskDepth(Op, frozen=True, kw_only=True):
    """Figures of a stream, or of all if the name is empty; answered by Depths. Not logged."""

    stream: str = ""


class AskWhy(Op, frozen=True, kw_only=True):
    """What a row waits for; answered by Why. Not logged."""

    row: int


class Beat(Op, frozen=True, kw_only=True):
    """Nothing but a sign of life: renews the leases of the process. Not logged."""


class Expire(Op, frozen=True, kw_only=True):
    """The ledger's own: leases of a process on a stream have run out. Made by ``Ledger.due``, logged, never sent by a peer.

    Attributes:
        who, life: the process whose leases they are; ``seq`` and ``oldest`` are 0.
    """

    stream: str


class Granted(msgspec.Struct, frozen=True, tag=True):
    """Done.

    Attributes:
        freed: shared-memory segments of the caller that hold nothing that the ledger knows of, and how many refs in each
            were released, ever. One of this life is empty if so many were made there (others are on their way to the ledger);
            one of an earlier life is empty. The answer to a Beat tells nothing.
        values: indexes in TransferQueue's storage that nobody needs since this operation; the caller clears them.
    """

    freed: dict[str, int] = {}
    values: list[int] = []


class Wait(msgspec.Struct, frozen=True, tag=True):
    """No room yet; ``reason`` is for a person: what is full, and who is to clear it."""

    reason: str


class Leased(msgspec.Struct, frozen=True, tag=True):
    """Blocks, perhaps none.

    Attributes:
        ended: every process that owes the columns has closed, nothing is ready, and no other process of the group holds
            blocks that it has neither acknowledged nor trained. What the caller itself holds does not count.
        fixed: of a draw: these blocks are the caller's share, even if there are none.
    """

    blocks: list[Given] = []
    ended: bool = False
    fixed: bool = False


class Newest(msgspec.Struct, frozen=True, tag=True):
    """By writer: number of the value, rising from 1, and the value as JSON."""

    values: dict[str, tuple[int, str]]


class Held(msgspec.Struct, frozen=True, tag=True):
    """Prompt numbers, rising, each once; none where the stream names no prompt column."""

    prompts: list[int]


class Depths(msgspec.Struct, frozen=True, tag=True):
    """By stream, JSON-like figures: see :meth:`hpcrl.dataplane.ledger.ledger.Ledger.figures`."""

    streams: dict[str, dict[str, Any]]


class Why(msgspec.Struct, frozen=True, tag=True):
    """Sentences: where the row is, who holds it, which columns it lacks and who owes them."""

    lines: list[str]


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The operation is against the rules, and nothing was changed.

    Attributes:
        kind: ``superseded``: a newer life of the process has begun; ``unknown``: this life has not said Hello; ``schema``: no
            such stream, column, right or row; ``lost``: the caller holds no lease on a block (it expired and another has it);
            ``closed``: this life has closed the stream; ``stale``: the caller's turn in a ring is over.
    """

    kind: Literal["superseded", "unknown", "schema", "lost", "closed", "stale"]
    reason: str


Asks = AskNewest | AskHeld | AskDepth | AskWhy | AwaitTurn
AnyOp = (
    Hello | Put | Fill | Lease | Draw | Trained | Acknowledge | GiveBack | Drop | Close | Announce | Beat
    | AskNewest | AskHeld | AskDepth | AskWhy | AskTurn | AwaitTurn | EndTurn
)  # fmt: skip
Logged = AnyOp | Expire | Vacate
Answer = Granted | Wait | Leased | Newest | Held | Depths | Why | Turn | Refused

_encoder = msgspec.msgpack.Encoder()
_ops: msgspec.msgpack.Decoder[AnyOp] = msgspec.msgpack.Decoder(AnyOp)
_logged: msgspec.msgpack.Decoder[Logged] = msgspec.msgpack.Decoder(Logged)
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def encode(message: Logged | Answer) -> bytes:
    """As bytes."""
    return _encoder.encode(message)


def decode_op(data: bytes) -> AnyOp:
    """What a peer sent, back from :func:`encode`; ``msgspec.ValidationError`` if it is no operation of a peer."""
    return _ops.decode(data)


def decode_logged(data: bytes) -> Logged:
    """What stands in the write-ahead log, the ledger's own operations too."""
    return _logged.decode(data)


def decode_answer(data: bytes) -> Answer:
    """Back from :func:`encode`; ``msgspec.ValidationError`` if it is no answer."""
    return _answers.decode(data)


def topic(op: Logged) -> str:
    """Of what news may change the answer to an operation that was given nothing."""
    ring = getattr(op, "ring", "")
    return ring_topic(ring) if ring else getattr(op, "stream", "")


def ring_topic(ring: str) -> str:
    """The topic of a ring; that of a stream is its name."""
    return f"ring {ring}"


def durable(op: Logged, answer: Answer) -> bool:
    """Whether the operation changed what must survive: then it belongs into the write-ahead log, with its time."""
    if isinstance(op, Asks | Beat) or isinstance(answer, Refused | Wait):
        return False
    return not isinstance(answer, Leased) or bool(answer.blocks) or answer.fixed
