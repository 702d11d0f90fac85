"""Lossless patches from one version of a tensor to the next. Pure.

Values are compared by their bits, so a NaN keeps its payload and a zero its sign. Of a step of reinforcement learning few
values change, and those mostly in their last bits, so a patch holds the distances between changed values and the exclusive or
of their bits. Each stream is split into planes of its low, next, … bytes, which differ in how well they compress, then
Zstandard level 1.

====== =====================================================================================================================
same   nothing
sparse number of changes (8 bytes), bytes of a distance (1), bytes of the first stream (8); distances; exclusive ors
xor    the exclusive or of all values
full   the values as they are
====== =====================================================================================================================

A checksum of method and content comes before each.
"""

from __future__ import annotations

import functools
import logging
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
import zstandard

from hpcrl.run.errors import HpcrlError

log = logging.getLogger(__name__)

METHODS = ("same", "sparse", "xor", "full")
_HEAD = struct.Struct("<QBQ")
_CHECKSUM = 8
# Of larger tensors with a smaller share of changes, xor saves nothing where these are scattered and less than a tenth where
# they are not, and to try it takes longer than all the rest; of small ones both are cheap to measure.
_SMALL, _FEW = 1 << 14, 1 / 8
_MANY = 1 / 2
# Values compared at a time: fewer cost more calls, more leave a core's cache.
_BLOCK = 1 << 19
# With a larger share of changes it takes less time to copy all values than the changed ones.
_SCATTERED = 1 / 32

Bits = np.ndarray[Any, np.dtype[np.unsignedinteger[Any]]]


class PatchError(HpcrlError):
    """A patch is damaged or not of this tensor; the tensor is as it was."""


@dataclass(frozen=True)
class Patch:
    """From one version of a tensor to the next.

    Attributes:
        method: of :data:`METHODS`.
        data: checksum and content.
    """

    method: str
    data: bytes | memoryview


@dataclass(frozen=True)
class Changes:
    """Where two versions of a tensor differ.

    Attributes:
        where: rising indexes, (changes,).
        xor: exclusive or of old and new there.
    """

    where: np.ndarray[Any, Any]
    xor: Bits

    def apply(self, bits: Bits) -> None:
        """Old to new, in place."""
        bits[self.where] ^= self.xor


def bits_of(data: bytes | bytearray | memoryview | np.ndarray[Any, Any], itemsize: int) -> Bits:
    """The values in some memory as unsigned integers, (values,), without a copy.

    Args:
        itemsize: bytes of a value: 1, 2, 4 or 8.
    """
    return np.frombuffer(data, dtype=f"<u{itemsize}")


def compare(old: Bits, new: Bits) -> Changes | None:
    """Where they differ; None if in more than half of the values."""
    kind = np.dtype(np.uint32 if new.size <= 1 << 32 else np.uint64)
    find = _finder()
    found_where, found_xor = [np.empty(0, kind)], [np.empty(0, new.dtype)]
    most, count = new.size * _MANY, 0
    for start in range(0, new.size, _BLOCK):
        before, after = old[start : start + _BLOCK], new[start : start + _BLOCK]
        where, xor = find(before, after, kind)
        count += where.size
        if count > most:
            return None
        found_where.append(where + kind.type(start))
        found_xor.append(xor)
    return Changes(np.concatenate(found_where), np.concatenate(found_xor))


def _find_plainly(old: Bits, new: Bits, kind: np.dtype[Any]) -> tuple[Any, Bits]:
    where = np.flatnonzero(old != new)
    return where.astype(kind), old[where] ^ new[where]


@functools.cache
def _finder() -> Callable[[Bits, Bits, np.dtype[Any]], tuple[Any, Bits]]:
    """Compiled, or, where there is no Numba for this Python or machine, at a third of the speed."""
    try:
        from hpcrl.checkpoint.publish.scan import find
    except ImportError as error:
        log.warning("changes of weights are searched for by NumPy, which takes three times as long: %s", error)
        return _find_plainly
    return find


def encode(old: Bits | None, new: Bits) -> Patch:
    """The smallest patch from old to new.

    Args:
        old: None, or of another size or type, where nothing can be built on.
    """
    if old is None or old.dtype != new.dtype or old.size != new.size:
        return _sealed("full", new.tobytes())
    return _smallest(old, new, compare(old, new))


def advance(old: Bits, new: Bits) -> Patch:
    """:func:`encode`, and old becomes new, in place. Both are of one size and type."""
    changes = compare(old, new)
    patch = _smallest(old, new, changes)
    if changes is None or changes.where.size > new.size * _SCATTERED:
        np.copyto(old, new)
    else:
        changes.apply(old)
    return patch


def apply(patch: Patch, bits: Bits) -> None:
    """Old to new, in place; the old values do not matter to ``full``.

    Raises:
        PatchError: the patch is damaged or not of a tensor of this size; nothing was changed.
    """
    content = _unsealed(patch)
    if patch.method == "same":
        return
    if patch.method == "full":
        if len(content) != bits.nbytes:
            raise PatchError(f"the patch has {len(content)} bytes for a tensor of {bits.nbytes}")
        bits[:] = bits_of(content, bits.itemsize)
    elif patch.method == "xor":
        bits ^= _unpacked(content, bits.size, bits.itemsize)
    else:
        _changes(content, bits).apply(bits)


def _smallest(old: Bits, new: Bits, changes: Changes | None) -> Patch:
    if changes is not None and not changes.where.size:
        return _sealed("same", b"")
    tried = []
    if changes is not None:
        tried.append(_sealed("sparse", _sparse(changes)))
    if changes is None or new.size <= _SMALL or changes.where.size > new.size * _FEW:
        tried.append(_sealed("xor", _packed(old ^ new)))
    best = min(tried, key=lambda patch: len(patch.data))
    return best if len(best.data) < new.nbytes + _CHECKSUM else _sealed("full", new.tobytes())


def _sparse(changes: Changes) -> bytes:
    distances = np.diff(changes.where, prepend=changes.where.dtype.type(0))
    distances[1:] -= 1
    largest = int(distances.max())
    width = next(width for width in (1, 2, 4, 8) if largest < 1 << 8 * width)
    first = _packed(distances.astype(f"<u{width}"))
    return _HEAD.pack(changes.where.size, width, len(first)) + first + _packed(changes.xor)


def _changes(content: memoryview, bits: Bits) -> Changes:
    if len(content) < _HEAD.size:
        raise PatchError(f"the patch has only {len(content)} bytes")
    count, width, split = _HEAD.unpack_from(content)
    body = content[_HEAD.size :]
    if width not in (1, 2, 4, 8) or not 0 < count <= bits.size or split > len(body):
        raise PatchError(f"the patch has {count} changes for a tensor of {bits.size} values")
    where = _unpacked(body[:split], count, width).astype(np.int64)
    where[1:] += 1
    np.cumsum(where, out=where)
    if where[-1] >= bits.size:
        raise PatchError(f"the patch changes value {where[-1]} of a tensor of {bits.size}")
    return Changes(where, _unpacked(body[split:], count, bits.itemsize))


def _packed(values: Bits) -> bytes:
    planes = np.ascontiguousarray(values.view(np.uint8).reshape(-1, values.itemsize).T)
    return _ZSTD.compressor.compress(planes.reshape(-1).data)


def _unpacked(data: memoryview, count: int, itemsize: int) -> Bits:
    try:
        planes = _ZSTD.decompressor.decompress(data, max_output_size=count * itemsize)
    except (zstandard.ZstdError, MemoryError) as error:
        raise PatchError(f"the patch cannot be unpacked: {error}") from error
    if len(planes) != count * itemsize:
        raise PatchError(f"the patch has {len(planes)} bytes where {count} values of {itemsize} were expected")
    values = np.ascontiguousarray(np.frombuffer(planes, np.uint8).reshape(itemsize, count).T)
    return values.reshape(-1).view(f"<u{itemsize}")


class _Zstd(threading.local):
    """A thread's own contexts: they hold buffers, and no two threads may use one at a time."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=1)
        self.decompressor = zstandard.ZstdDecompressor()


_ZSTD = _Zstd()


def _sealed(method: str, content: bytes) -> Patch:
    return Patch(method, _checksum(method, content) + content)


def _unsealed(patch: Patch) -> memoryview:
    data = memoryview(patch.data)
    if patch.method not in METHODS:
        raise PatchError(f"patches of the method {patch.method!r} are not known")
    if data[:_CHECKSUM] != _checksum(patch.method, data[_CHECKSUM:]):
        raise PatchError(f"the patch ({patch.method}, {len(data)} bytes) is damaged: its checksum is another")
    return data[_CHECKSUM:]


def _checksum(method: str, content: bytes | memoryview) -> bytes:
    digest = xxhash.xxh3_64(method.encode() + b"|")
    digest.update(content)
    return digest.digest()
