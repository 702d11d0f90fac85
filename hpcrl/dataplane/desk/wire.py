"""What travels between a process and the desk.

A request, little-endian: a double, how long its answer may wait for something to give [s]; an int64, how often the operation
was sent before; then the operation. Its answer: an int64, the operation's ``seq``; then the answer.
"""

from __future__ import annotations

import struct

from hpcrl.dataplane.ledger.ops import Answer, Leased, Wait
from hpcrl.dataplane.ledger.turns import Turn

_HEAD = struct.Struct("<dq")
_SEQ = struct.Struct("<q")


def pack_request(wait_s: float, sent: int, op: bytes) -> bytes:
    """A request."""
    return _HEAD.pack(wait_s, sent) + op


def unpack_request(data: bytes) -> tuple[float, int, bytes]:
    """Back from :func:`pack_request`; ``struct.error`` if it is too short."""
    wait_s, sent = _HEAD.unpack_from(data)
    return wait_s, sent, data[_HEAD.size :]


def pack_reply(seq: int, answer: bytes) -> bytes:
    """An answer to the operation of that number."""
    return _SEQ.pack(seq) + answer


def unpack_reply(data: bytes) -> tuple[int, bytes]:
    """Back from :func:`pack_reply`."""
    return _SEQ.unpack_from(data)[0], data[_SEQ.size :]


def gives_nothing(answer: Answer) -> bool:
    """Whether nothing was changed, so that the same operation may be asked again later and get something."""
    if isinstance(answer, Turn):
        return not answer.settled
    return isinstance(answer, Wait) or (isinstance(answer, Leased) and not (answer.blocks or answer.ended or answer.fixed))
