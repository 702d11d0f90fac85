"""What a process says of a ring's token, and what it hears; see :mod:`hpcrl.dataplane.ledger.ops`."""

from __future__ import annotations

import msgspec

from hpcrl.dataplane.ledger.op import Op


class AskTurn(Op, frozen=True, kw_only=True):
    """This process wants its group to have a ring's token; answered by Granted at once. Asking twice is no error.

    Attributes:
        seconds: how long the process may be silent, from now until it has let go of the token, before it counts as gone.
        host: where it runs, for errors of others.
    """

    ring: str
    seconds: float
    host: str


class AwaitTurn(Op, frozen=True, kw_only=True):
    """Answered by Turn; ``stale`` where the process neither has the token nor asks for it. Not logged.

    Attributes:
        epoch: of the token that the process has, and will have until it must let go; 0 = it waits for one.
    """

    ring: str
    epoch: int = 0


class EndTurn(Op, frozen=True, kw_only=True):
    """This process has let go of what the token of that epoch gave it; ``stale`` if that token is not valid any more.

    Attributes:
        freed, left: memory that it let go of, and that it still has [bytes].
        took_s: from the beginning of the release [s].
        news: JSON for the group that gets the token next; empty keeps what was said before.
    """

    ring: str
    epoch: int
    freed: int = 0
    left: int = 0
    took_s: float = 0.0
    news: str = ""


class Vacate(Op, frozen=True, kw_only=True):
    """The ledger's own: a process of a ring was silent for too long. Made by ``Ledger.due``, logged, never sent by a peer."""

    ring: str


class Turn(msgspec.Struct, frozen=True, tag=True):
    """How a ring stands for a process.

    Attributes:
        settled: what was waited for is so: the process has the token, or must let go of it.
        epoch: of the token now.
        holder: group that has it; empty if none has.
        inside: its processes that have not let go, and their hosts.
        held_s, called_s: for how long it has been held, and asked for in vain, which is 0 while the holder need not let go [s].
        giver: group that had it before.
        freed, left: memory that the giver's processes let go of, and that they said they still have [bytes].
        gave_s: from the call, or where there was none from the begin of the release, until all had let go [s].
        news: JSON from whoever handed it on last and had any; empty if nobody had.
    """

    settled: bool
    epoch: int = 0
    holder: str = ""
    inside: dict[str, str] = {}
    held_s: float = 0.0
    called_s: float = 0.0
    giver: str = ""
    freed: int = 0
    left: int = 0
    gave_s: float = 0.0
    news: str = ""
