"""A file for HDF5 to write to that never fails under it: HDF5 may crash the process when it closes a file on a full disk."""

from __future__ import annotations

import io
import os
from pathlib import Path


class Sink(io.RawIOBase):
    """Takes what HDF5 writes; after the first error the rest is kept in memory, so that HDF5 can close in good order.

    Whoever writes looks at :attr:`failed` every few MiB, and after the end, and gives up.

    Attributes:
        failed: the first error of the file system, None so far.
    """

    def __init__(self, path: Path) -> None:
        self.failed: OSError | None = None
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        self._at = 0
        self._lost: list[tuple[int, bytes]] = []

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """As of every file."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size()}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        """As of every file."""
        return self._at

    def write(self, data: memoryview) -> int:  # type: ignore[override]
        """Write all of it, or keep it."""
        view = memoryview(data).cast("B")
        done = 0
        try:
            while self.failed is None and done < len(view):
                done += os.pwrite(self._descriptor, view[done:], self._at + done)
        except OSError as error:
            self.failed = error
        if done < len(view):
            self._lost.append((self._at + done, bytes(view[done:])))
        self._at += len(view)
        return len(view)

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """What was written, kept parts included."""
        view = memoryview(buffer).cast("B")
        data = bytearray(len(view))
        try:
            found = os.pread(self._descriptor, len(view), self._at)
            data[: len(found)] = found
        except OSError as error:
            self.failed = self.failed or error
        for offset, kept in self._lost:
            start, end = max(offset, self._at), min(offset + len(kept), self._at + len(view))
            if start < end:
                data[start - self._at : end - self._at] = kept[start - offset : end - offset]
        view[:] = data
        self._at += len(view)
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        """As of every file, but for errors."""
        size = self._at if size is None else size
        try:
            os.ftruncate(self._descriptor, size)
        except OSError as error:
            self.failed = self.failed or error
        return size

    def readable(self) -> bool:
        """Yes."""
        return True

    def writable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def check(self) -> None:
        """Raise the first error, if there was one."""
        if self.failed is not None:
            raise self.failed

    def sync(self) -> None:
        """Make all of it durable.

        Raises:
            OSError: it is not: something could not be written, now or before.
        """
        self.check()
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Let go of the file; some file systems say only now that the disk is full."""
        if not self.closed:
            super().close()
            os.close(self._descriptor)

    def _size(self) -> int:
        kept = max((offset + len(data) for offset, data in self._lost), default=0)
        return max(kept, os.fstat(self._descriptor).st_size)
