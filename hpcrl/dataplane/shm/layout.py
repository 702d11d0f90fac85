"""Name, header and sizes of a segment. Pure.

::

    FOLDER/GROUP.RANK/LIFE/00000.seg      number rises with every use: a file that is used again has a new name
    FOLDER/GROUP.RANK/LIFE/00000.spare    holds nothing; waits to be used again

    bytes 0-63      header
    from byte 64    blocks, each 64-byte aligned
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from pathlib import Path

import xxhash

ALIGN = 64
_MAGIC = b"hpcrlseg"
_HEADER = struct.Struct("<8sQqqqq")
_NAME = re.compile(r"([A-Za-z0-9_][\w.\-]*)/(\d+)/(\d{5,})\.seg", re.ASCII)


@dataclass(frozen=True)
class Header:
    """What a segment says of itself.

    Attributes:
        owner: hash of run, attempt and writer; see :func:`owner_hash`.
        number: of this use of the file; the same as in its name.
        capacity: bytes of the file, this header included.
        single: holds one block only.
    """

    owner: int
    life: int
    number: int
    capacity: int
    single: bool

    def pack(self) -> bytes:
        """As ``ALIGN`` bytes."""
        packed = _HEADER.pack(_MAGIC, self.owner, self.life, self.number, self.capacity, self.single)
        return packed.ljust(ALIGN, b"\0")

    @classmethod
    def unpack(cls, data: bytes) -> Header | None:
        """Back from :meth:`pack`; None if it is no header."""
        if len(data) < _HEADER.size:
            return None
        magic, owner, life, number, capacity, single = _HEADER.unpack_from(data)
        return cls(owner, life, number, capacity, bool(single)) if magic == _MAGIC else None


@dataclass(frozen=True)
class SegmentName:
    """Whose segment, and which."""

    who: str
    life: int
    number: int

    def __str__(self) -> str:
        return f"{self.who}/{self.life}/{self.number:05d}.seg"

    @classmethod
    def parse(cls, name: str) -> SegmentName | None:
        """Back from ``str``; None if it is none, so that no name leads out of the folder."""
        match = _NAME.fullmatch(name)
        return cls(match[1], int(match[2]), int(match[3])) if match else None


def owner_hash(folder: Path, who: str) -> int:
    """Of the writer ``who`` of the attempt whose folder this is."""
    return xxhash.xxh3_64_intdigest(f"{folder.parent.name}/{folder.name}/{who}".encode())


def aligned(size: int) -> int:
    """The next multiple of ``ALIGN``."""
    return -(-size // ALIGN) * ALIGN


def size_class(size: int) -> int:
    """A capacity that holds ``size`` bytes, at most an eighth more but whole pages, so that like sizes can use a file again."""
    step = max(4096, 1 << max(0, size.bit_length() - 4))
    return -(-size // step) * step
