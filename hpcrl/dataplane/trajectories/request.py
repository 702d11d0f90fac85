"""What the trainer and the process that writes its trajectories say to each other.

A :class:`Request`, then so many blocks, a message each; :class:`Done` or :class:`Failed` back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from hpcrl.dataplane.ledger.ops import Labels
from hpcrl.dataplane.snapshot.layout import SavedBlock
from hpcrl.dataplane.trajectories.layout import STREAM


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """Rows to make durable.

    Attributes:
        folder: of the attempt's trajectories; made if it is not there.
        after: the step that the attempt went on from.
        first_step, last_step: of the blocks.
        onto: first step of the file that they are to be added to; 0 = a new one.
        blocks: how many follow.
    """

    folder: str
    run_id: str
    attempt: int
    after: int
    first_step: int = 0
    last_step: int = 0
    onto: int = 0
    blocks: int = 0


class Done(msgspec.Struct, frozen=True, tag=True):
    """They are durable, in the file that begins with this step, which has so many bytes."""

    first_step: int
    bytes: int


class Failed(msgspec.Struct, frozen=True, tag=True):
    """They are not."""

    error: str


Reply = Done | Failed


class _Block(msgspec.Struct, frozen=True, array_like=True):
    first: int
    rows: int
    columns: dict[str, bytes]
    labels: Labels


_encoder = msgspec.msgpack.Encoder()
_requests = msgspec.msgpack.Decoder(Request)
_blocks = msgspec.msgpack.Decoder(_Block)
_replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def encode(request: Request, blocks: Sequence[SavedBlock]) -> Iterator[bytes]:
    """The messages of a request."""
    yield _encoder.encode(request)
    for block in blocks:
        columns = {name: data.data for name, data in block.columns.items()}
        yield _encoder.encode((block.first, block.rows, columns, block.labels))


def decode_request(message: bytes) -> Request:
    """Back from the first of :func:`encode`; ``msgspec.MsgspecError`` if it is none."""
    return _requests.decode(message)


def decode_block(message: bytes) -> SavedBlock:
    """Back from the others."""
    block = _blocks.decode(message)
    columns = {name: np.frombuffer(data, np.uint8) for name, data in block.columns.items()}
    return SavedBlock(STREAM.name, block.first, block.rows, columns, block.labels)


def encode_reply(reply: Reply) -> bytes:
    """A message."""
    return _encoder.encode(reply)


def decode_reply(message: bytes) -> Reply:
    """Back from :func:`encode_reply`."""
    return _replies.decode(message)
