"""What happened to rows, as the history keeps it: one event for whole blocks, in the ledger's own order."""

from __future__ import annotations

from typing import Literal

import msgspec

from hpcrl.dataplane.ledger.ops import Labels

Kind = Literal["life", "produced", "filled", "leased", "expired", "given_back", "trained", "acknowledged", "cleared", "dropped"]


class Event(msgspec.Struct, frozen=True, array_like=True):
    """One event.

    Attributes:
        kind: ``life``: a process began a life; ``trained``: the final reader trained the rows, which counts once they are
            ``acknowledged``, by the same life or a later one; ``cleared``: the final reader has acknowledged them, so they are
            gone.
        t: Unix time [s].
        who: process.
        life: of that process.
        stream: empty for ``life``.
        blocks: first row id and number of rows of each block.
        labels: of the rows of all the blocks, where they were produced.
        version: policy version that training on the rows made; of a lease, the number of the draw; -1 = none.
        reason: why rows were dropped; which columns were filled or asked for, with commas between.
    """

    kind: Kind
    t: float
    who: str
    life: int
    stream: str = ""
    blocks: list[tuple[int, int]] = []
    labels: Labels = Labels()
    version: int = -1
    reason: str = ""
