"""What the desk and the process that makes snapshots for it say to each other, over its standard input and output.

In: frames (uint32 length, little-endian; msgpack), first the :class:`Request`, then lists of blocks, at last an empty one;
later a line, ``commit`` or ``leave it``; and so on for the next. Out: lines of JSON, a :class:`LeftOut` when all is written,
then :class:`Done`; or :class:`Failed`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import msgspec

from hpcrl.dataplane.ledger.records import LiveBlock
from hpcrl.recipe import Stream

COMMIT, KEEP_OUT = b"commit\n", b"leave it\n"
# So few are encoded at a time that the desk's own thread does not notice.
_CHUNK = 64
_LENGTH = struct.Struct("<I")


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot to make.

    Attributes:
        run, attempt: of which; ``run`` is its directory.
        node: name of this node.
        folder: of the attempt, in the node's shared memory.
        ledger_seq: see :class:`hpcrl.dataplane.snapshot.manifest.Manifest`.
        storage: endpoints of the storage units, and the run's key for them.
        call_s: deadline of one call to them [s].
        nice: how much others come first.
    """

    run: str
    attempt: int
    node: str
    folder: str
    streams: tuple[Stream, ...]
    ledger_seq: int
    storage: list[dict[str, Any]] = []
    key: str = ""
    call_s: float = 60.0
    nice: int = 0


class LeftOut(msgspec.Struct, frozen=True, tag=True):
    """Everything is written but for blocks that could not be read, by stream and first row; ``why``: of the first."""

    blocks: list[tuple[str, int]] = []
    why: str = ""


class Done(msgspec.Struct, frozen=True, tag=True):
    """The snapshot exists; ``problems``: with removing older ones."""

    number: int
    rows: int
    bytes: int
    seconds: float
    problems: list[str] = []


class Failed(msgspec.Struct, frozen=True, tag=True):
    """There is no snapshot."""

    error: str


Reply = LeftOut | Done | Failed

_encoder = msgspec.msgpack.Encoder()
_request = msgspec.msgpack.Decoder(Request)
_blocks = msgspec.msgpack.Decoder(list[LiveBlock])
_replies: msgspec.json.Decoder[Reply] = msgspec.json.Decoder(Reply)


def encode_request(request: Request, blocks: Sequence[LiveBlock]) -> Iterator[bytes]:
    """The request in pieces."""
    yield _frame(_encoder.encode(request))
    for start in range(0, len(blocks), _CHUNK):
        yield _frame(_encoder.encode(blocks[start : start + _CHUNK]))
    yield _frame(_encoder.encode([]))


def read_request(source: BinaryIO) -> tuple[Request, list[LiveBlock]]:
    """Back from :func:`encode_request`.

    Raises:
        EOFError: whoever asked has ended.
        msgspec.MsgspecError: it is no request.
    """
    request = _request.decode(_read_frame(source))
    blocks: list[LiveBlock] = []
    while piece := _blocks.decode(_read_frame(source)):
        blocks += piece
    return request, blocks


def encode_reply(reply: Reply) -> bytes:
    """A line."""
    return msgspec.json.encode(reply) + b"\n"


def decode_reply(line: bytes) -> Reply:
    """Back from :func:`encode_reply`; ``msgspec.MsgspecError`` if it is none."""
    return _replies.decode(line)


def _frame(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


def _read_frame(source: BinaryIO) -> bytes:
    return _read(source, _LENGTH.unpack(_read(source, _LENGTH.size))[0])


def _read(source: BinaryIO, size: int) -> bytes:
    data = source.read(size)
    if len(data) < size:
        raise EOFError("the request ends before its end")
    return data
