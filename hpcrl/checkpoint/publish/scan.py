"""Where two versions of a tensor differ, found in one pass over them at the speed of memory. Pure.

NumPy needs several passes for it, of which the search for what is not zero costs most. Compiled by Numba at the first call for
each type of values, within a second. It is not kept on the disk, where a full or missing home would make the call fail.
"""

from __future__ import annotations

import threading
from typing import Any

import numba
import numpy as np

_U64 = numba.uint64
# Words looked at before it is asked whether any of them differs: a line of the cache.
_LINE = 8


class _Room(threading.local):
    """A thread's own memory for what is found."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, np.dtype[Any]], Any] = {}

    def of(self, use: str, kind: np.dtype[Any], size: int) -> Any:
        held = self._held.get((use, kind))
        if held is None or held.size < size:
            held = self._held[use, kind] = np.empty(size, kind)
        return held


_ROOM = _Room()


def find(old: Any, new: Any, kind: np.dtype[Any]) -> tuple[Any, Any]:
    """Which values differ, as ``kind``, and the exclusive or of their bits.

    Args:
        old, new: (values,), unsigned integers of one type and size.
    """
    lanes = 8 // new.itemsize
    even = old.size // (lanes * _LINE) * (lanes * _LINE)
    where, xor = _ROOM.of("where", kind, even + 1), _ROOM.of("xor", new.dtype, even + 1)
    count = int(find_changes(old[:even].view("<u8"), new[:even].view("<u8"), lanes, where, xor))
    rest = even + np.flatnonzero(old[even:] != new[even:])
    if not rest.size:
        return where[:count].copy(), xor[:count].copy()
    return np.append(where[:count], rest.astype(kind)), np.append(xor[:count], old[rest] ^ new[rest])


@numba.njit(nogil=True)  # type: ignore[untyped-decorator]
def find_changes(old: Any, new: Any, lanes: int, where: Any, xor: Any) -> int:
    """Fill in which values differ and the exclusive or of their bits; returns how many do.

    Args:
        old, new: uint64 (words,), of little-endian values; whole lines.
        lanes: values in a word.
        where: (words * lanes + 1,), unsigned integers.
        xor: (words * lanes + 1,), of the values' type.
    """
    bits = 64 // lanes
    mask = ~_U64(0) >> _U64(64 - bits)
    # Signed numbers would be looked at for being negative at each use.
    count, start, words = _U64(0), _U64(0), _U64(old.size)
    while start < words:
        differ = _U64(0)
        for place in range(_LINE):
            differ |= old[start + _U64(place)] ^ new[start + _U64(place)]
        if differ:
            for place in range(_LINE):
                word = start + _U64(place)
                differ = old[word] ^ new[word]
                if differ:
                    for lane in range(lanes):
                        value = (differ >> _U64(lane * bits)) & mask
                        # Written in any case and kept if it is one: which values differ cannot be foreseen.
                        where[count] = word * _U64(lanes) + _U64(lane)
                        xor[count] = value
                        count += _U64(value != 0)
        start += _U64(_LINE)
    return int(count)
