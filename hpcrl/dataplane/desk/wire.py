"""What travels between a process and the desk.

A request: 8 bytes, how long its answer may wait for something to give [s, little-endian double], then the operation. Its
answer: 8 bytes, the operation's ``seq``, then the answer.
"""

from __future__ import annotations

import struct

from hpcrl.dataplane.ledger.ops import Answer, Leased, Wait

_WAIT = struct.Struct("<d")
_SEQ = struct.Struct("<q")


def pack_request(wait_s: float, op: bytes) -> bytes:
    """A request."""
    return _WAIT.pack(wait_s) + op


def unpack_request(data: bytes) -> tuple[float, bytes]:
    """Back from :func:`pack_request`; ``struct.error`` if it is too short."""
    return _WAIT.unpack_from(data)[0], data[_WAIT.size :]


def pack_reply(seq: int, answer: bytes) -> bytes:
    """An answer to the operation of that number."""
    return _SEQ.pack(seq) + answer


def unpack_reply(data: bytes) -> tuple[int, bytes]:
    """Back from :func:`pack_reply`."""
    return _SEQ.unpack_from(data)[0], data[_SEQ.size :]


def gives_nothing(answer: Answer) -> bool:
    """Whether nothing was changed, so that the same operation may be asked again later and get something."""
    return isinstance(answer, Wait) or (isinstance(answer, Leased) and not (answer.blocks or answer.ended or answer.fixed))
