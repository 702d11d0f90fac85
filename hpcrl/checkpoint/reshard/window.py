"""Reading parts of a file, counted."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

# Gaps up to this are read rather than skipped: a file system reads whole pages anyway.
_BRIDGE_BYTES = 4096
_BUFFER_BYTES = 8 << 20


class Window(io.RawIOBase):
    """A part of an open file as a file of its own.

    Attributes:
        read_bytes: bytes read so far.
    """

    def __init__(self, descriptor: int, offset: int, length: int) -> None:
        super().__init__()
        self._descriptor, self._offset, self._length = descriptor, offset, length
        self._at = 0
        self.read_bytes = 0

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """As of any file."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._length}[whence]
        if self._at < 0:
            raise ValueError(f"a place before the start: {self._at}")
        return self._at

    def tell(self) -> int:
        """As of any file."""
        return self._at

    def readinto(self, buffer: Any) -> int:
        """As of any file."""
        view = memoryview(buffer).cast("B")[: max(0, self._length - self._at)]
        count = os.preadv(self._descriptor, [view], self._offset + self._at) if len(view) else 0
        self._at += count
        self.read_bytes += count
        return count

    def read_ranges(self, ranges: np.ndarray, out: memoryview) -> None:
        """Fill ``out`` with the bytes of rising ranges, one after the other.

        Args:
            ranges: int64 (ranges, 2), first and end byte.

        Raises:
            ValueError: the file ends too early.
        """
        filled = 0
        for parts in _near(ranges):
            first, stop = int(parts[0, 0]), int(parts[-1, 1])
            if len(parts) == 1:
                self._fill(first, out[filled : filled + stop - first])
                filled += stop - first
                continue
            piece = memoryview(bytearray(stop - first))
            self._fill(first, piece)
            for a, b in (parts - first).tolist():
                out[filled : filled + b - a] = piece[a:b]
                filled += b - a

    def _fill(self, start: int, out: memoryview) -> None:
        self.seek(start)
        while len(out):
            count = self.readinto(out)
            if not count:
                raise ValueError(f"the file ends {len(out)} bytes too early")
            out = out[count:]


def _near(ranges: np.ndarray) -> Iterator[np.ndarray]:
    """Ranges that are read at once."""
    gaps = np.flatnonzero(ranges[1:, 0] - ranges[:-1, 1] > _BRIDGE_BYTES) + 1
    for group in np.split(ranges, gaps):
        # A long row of small ones, a buffer at a time.
        turns = (group[:, 1] - group[0, 0]) // _BUFFER_BYTES if len(group) > 1 else np.zeros(len(group), np.int64)
        yield from np.split(group, np.flatnonzero(np.diff(turns)) + 1)
