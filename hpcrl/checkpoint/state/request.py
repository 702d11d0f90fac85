"""What a trainer's rank and the process that writes its saves say to each other.

First the trainer's pickled :class:`~hpcrl.checkpoint.state.plan.Planned`, then a :class:`Job` for each save; for each the
writer answers :class:`Done` or :class:`Failed`. The writer ends when the trainer's end of the connection is closed.
"""

from __future__ import annotations

import msgspec

from hpcrl.checkpoint.state.manifest import Manifest
from hpcrl.checkpoint.state.retain import Keep


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """Rank 0's further work.

    Attributes:
        manifest: all of it but the files.
        trained: int64 ids of rows, little-endian.
        parts_s: how long the other ranks' parts may take [s].
    """

    manifest: Manifest
    trained: bytes
    keep: Keep
    parts_s: float


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A save to write, from the shared memory.

    Attributes:
        folder: of all saves.
        attempt, step, number: see :class:`~hpcrl.checkpoint.state.layout.SaveName`.
        rng: this rank's random states.
        commit: None on other ranks than 0.
    """

    folder: str
    attempt: int
    step: int
    number: int
    rank: int
    world_size: int
    rng: bytes
    commit: Commit | None = None


class Done(msgspec.Struct, frozen=True, tag=True):
    """The rank's part is durable; with rank 0, the save is committed.

    Attributes:
        bytes: of the rank's files; with rank 0, of the save.
        problems: with removing older saves.
    """

    bytes: int
    seconds: float
    problems: list[str] = []


class Failed(msgspec.Struct, frozen=True, tag=True):
    """There is no such save."""

    error: str


Reply = Done | Failed

_encoder = msgspec.msgpack.Encoder()
_jobs = msgspec.msgpack.Decoder(Job)
_replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def encode(message: Job | Reply) -> bytes:
    """As the other side's ``decode`` takes it."""
    return _encoder.encode(message)


def decode_job(data: bytes) -> Job:
    """Back from :func:`encode`."""
    return _jobs.decode(data)


def decode_reply(data: bytes) -> Reply:
    """Back from :func:`encode`."""
    return _replies.decode(data)
