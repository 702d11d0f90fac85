"""The bytes of the history: events in frames, each with its length and checksum. Pure.

A file is ``MAGIC`` and then frames: length of the body and its CRC-32, both little-endian 32 bits, then the body, msgpack.
What an event repeats (its kind, process, life, stream, reason: together its shape; the upper bits of row ids) is written once
in a file and numbered; blocks are written as distances from the end of the last one of the same writer, equal ones that
follow each other as a run; a label that all rows share is written once.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import msgspec

from hpcrl.dataplane.ledger.events import Event, Kind
from hpcrl.dataplane.ledger.ops import Labels
from hpcrl.dataplane.rowids import COUNTER_BITS

MAGIC = b"hpcrlEV1"
HEAD = struct.Struct("<II")
# A length beyond this is no length but damage.
MAX_FRAME = 1 << 28

_Shape = tuple[Kind, str, int, str, str]
_MASK = (1 << COUNTER_BITS) - 1
_NO_LABELS = Labels()


class Body(msgspec.Struct, frozen=True, array_like=True):
    """A frame's body.

    Attributes:
        number: of its first event.
        count: events in it.
        t: the time that its events' times are counted from [ms since 1970].
        shapes, prefixes: those that the file had not before; they get the next numbers.
        numbers: the events.
    """

    number: int
    count: int
    t: int
    shapes: list[_Shape]
    prefixes: list[int]
    numbers: list[int]


class _Head(msgspec.Struct, frozen=True, array_like=True):
    number: int
    count: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Body).decode
_decode_head = msgspec.msgpack.Decoder(_Head).decode


class FrameEncoder:
    """Makes the frames of one file, in order."""

    def __init__(self) -> None:
        self._shapes: dict[_Shape, int] = {}
        self._prefixes: dict[int, int] = {}

    def encode(self, number: int, events: Sequence[Event]) -> bytes:
        """Events ``number`` and following as one frame. Times are kept to the millisecond."""
        base = round(events[0].t * 1000)
        shapes, prefixes = len(self._shapes), len(self._prefixes)
        ends: dict[int, int] = {}
        out: list[int] = []
        for event in events:
            shape = (event.kind, event.who, event.life, event.stream, event.reason)
            index = self._shapes.setdefault(shape, len(self._shapes))
            out += (index, round(event.t * 1000) - base, event.version + 1)
            self._put_blocks(event.blocks, ends, out)
            if event.labels == _NO_LABELS:
                out.append(0)
            else:
                out.append(1)
                rows = sum(count for _, count in event.blocks)
                labels = event.labels
                for values in (labels.prompts, labels.first_versions, labels.last_versions, labels.tokens):
                    _put_label(values, rows, out)
        body = _encode(Body(number, len(events), base, list(self._shapes)[shapes:], list(self._prefixes)[prefixes:], out))
        return HEAD.pack(len(body), zlib.crc32(body)) + body

    def _put_blocks(self, blocks: Sequence[tuple[int, int]], ends: dict[int, int], out: list[int]) -> None:
        at = len(out)
        out.append(0)
        runs, next_first, last_rows = 0, -1, -1
        for first, rows in blocks:
            if first == next_first and rows == last_rows:
                out[-1] += 1
            else:
                prefix = first >> COUNTER_BITS
                index = self._prefixes.setdefault(prefix, len(self._prefixes))
                if next_first >= 0:
                    ends[next_first >> COUNTER_BITS] = next_first & _MASK
                out += (index, (first & _MASK) - ends.get(prefix, 0), rows, 1)
                runs += 1
            next_first, last_rows = first + rows, rows
        if next_first >= 0:
            ends[next_first >> COUNTER_BITS] = next_first & _MASK
        out[at] = runs


class FrameDecoder:
    """Reads the frames of one file, in order."""

    def __init__(self) -> None:
        self._shapes: list[_Shape] = []
        self._prefixes: list[int] = []

    def decode(self, body: bytes) -> tuple[int, list[Event]]:
        """The number of the first event, and the events.

        Raises:
            ValueError: this is no frame's body, or one before it is missing.
        """
        frame = _decode(body)
        self._shapes += frame.shapes
        self._prefixes += frame.prefixes
        try:
            return frame.number, list(self._events(frame))
        except (IndexError, StopIteration) as error:
            raise ValueError("a frame refers to what no frame before it told") from error

    def _events(self, frame: Body) -> Iterator[Event]:
        numbers, at, ends, base = frame.numbers, 0, dict[int, int](), frame.t
        for _ in range(frame.count):
            kind, who, life, stream, reason = self._shapes[numbers[at]]
            t, version, runs = (base + numbers[at + 1]) / 1000, numbers[at + 2] - 1, numbers[at + 3]
            at += 4
            blocks: list[tuple[int, int]] = []
            total = 0
            for _ in range(runs):
                prefix, rows, count = self._prefixes[numbers[at]], numbers[at + 2], numbers[at + 3]
                first = (prefix << COUNTER_BITS) + ends.get(prefix, 0) + numbers[at + 1]
                at += 4
                for _ in range(count):
                    blocks.append((first, rows))
                    first += rows
                ends[first >> COUNTER_BITS] = first & _MASK
                total += rows * count
            labels = _NO_LABELS
            at += 1
            if numbers[at - 1]:
                fields = []
                for _ in range(4):
                    values, at = _take_label(numbers, at, total)
                    fields.append(values)
                labels = Labels(*fields)
            yield Event(kind, t, who, life, stream, blocks, labels, version, reason)


def read_frames(file: BinaryIO) -> Iterator[bytes]:
    """The bodies of a file, up to its end or the first frame that is not whole.

    Raises:
        ValueError: this is no history, or a frame that is all there is damaged.
    """
    magic = file.read(len(MAGIC))
    if magic != MAGIC:
        if MAGIC.startswith(magic):
            return
        raise ValueError("it does not begin as a history does")
    while len(head := file.read(HEAD.size)) == HEAD.size:
        length, checksum = HEAD.unpack(head)
        if length > MAX_FRAME:
            raise ValueError("a frame's length is damaged")
        body = file.read(length)
        if len(body) < length:
            return
        if zlib.crc32(body) != checksum:
            raise ValueError("a frame's checksum is wrong")
        yield body


def next_number(body: bytes) -> int:
    """The number that follows the last event of a frame."""
    frame = _decode_head(body)
    return frame.number + frame.count


def _put_label(values: Sequence[int], rows: int, out: list[int]) -> None:
    """0: none; 1: one value for all rows; else 2 more than their number, and the values."""
    if not values:
        out.append(0)
    elif len(values) == rows and values.count(values[0]) == rows:
        out += (1, values[0])
    else:
        out.append(len(values) + 2)
        out += values


def _take_label(numbers: Sequence[int], at: int, rows: int) -> tuple[list[int], int]:
    mode = numbers[at]
    if mode == 0:
        return [], at + 1
    if mode == 1:
        return [numbers[at + 1]] * rows, at + 2
    return list(numbers[at + 1 : at + mode - 1]), at + mode - 1
