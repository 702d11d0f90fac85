"""What every operation has in common."""

from __future__ import annotations

import msgspec


class Op(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Fields of every operation.

    Attributes:
        who: ``group.rank`` of the process.
        life: rises each time that the process is started; an older life is refused (fencing).
        seq: number of the operation within the life, from 1.
        oldest: every operation of a lower number has had its answer and done what it asked for, so the ledger may forget it.
    """

    who: str
    life: int
    seq: int
    oldest: int
