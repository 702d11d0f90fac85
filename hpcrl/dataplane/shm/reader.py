"""Maps the segments of other processes of the node.

What is mapped is also locked, shared, for as long as an array of it lives: its writer leaves it alone, whoever was told
that it is free, and a removed file stays readable. Files never shrink, so a mapping that was checked once is safe to read.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
from pathlib import Path

import numpy as np

from hpcrl.dataplane.interface import DataPlaneError
from hpcrl.dataplane.ledger.ops import Ref
from hpcrl.dataplane.shm.layout import ALIGN, Header, SegmentName, owner_hash
from hpcrl.run.errors import host

KEPT = 8


class SegmentReader:
    """Reads blocks of bytes from shared memory. Thread-safe.

    Args:
        folder: of the attempt; see :func:`hpcrl.dataplane.shm.folders.attempt_folder`.
        node: name of this node in the refs.
    """

    def __init__(self, folder: Path, node: str) -> None:
        self._folder, self._node = folder, node
        self._lock = threading.Lock()
        # The most recently read last.
        self._maps: dict[str, np.ndarray] = {}

    def read(self, ref: Ref) -> np.ndarray:
        """The bytes, uint8 (size,), without a copy; they stay as they are for as long as the array lives.

        Read-only, but for a block that has a segment to itself: that one is the caller's own, and what is written to it
        nobody else sees. Keep it no longer than needed: its segment cannot be used again meanwhile.

        Raises:
            DataPlaneError: the segment is gone, damaged, another's or on another node, or the ref leads out of it.
        """
        with self._lock:
            mapped = self._maps.pop(ref.where, None)
            if mapped is None:
                self._drop_vanished()
                mapped, keep = self._map(ref)
            else:
                keep = True
            if keep:
                self._maps[ref.where] = mapped
            if len(self._maps) > KEPT:
                del self._maps[next(iter(self._maps))]
        if ref.offset < ALIGN or not 0 <= ref.size <= len(mapped) - ref.offset:
            raise self._failure(ref, f"the segment has {len(mapped)} bytes, of which the first {ALIGN} are its header")
        return mapped[ref.offset : ref.offset + ref.size]

    def release(self) -> None:
        """Let go of mappings that nothing needs: call it when no read is expected soon."""
        with self._lock:
            self._maps.clear()

    def _drop_vanished(self) -> None:
        for where in [where for where in self._maps if not (self._folder / where).exists()]:
            del self._maps[where]

    def _map(self, ref: Ref) -> tuple[np.ndarray, bool]:
        """All of the segment's bytes, and whether there may be other blocks in it."""
        name = SegmentName.parse(ref.where)
        if ref.kind != "shm" or name is None:
            raise self._failure(ref, "it names no segment")
        if ref.node != self._node:
            raise self._failure(ref, f"it lies on node {ref.node!r}, this is {self._node!r}; its edge needs another transport")
        path = self._folder / str(name)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise self._failure(ref, f"{path}: {error.strerror}; its block was cleared, or the attempt has ended") from error
        try:
            # Waits for nobody: a writer has it alone only while it gives the file a new name.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            size = os.fstat(descriptor).st_size
            header = Header.unpack(os.pread(descriptor, ALIGN, 0))
            if header is None or header.capacity > size or header.owner != owner_hash(self._folder, name.who):
                raise self._failure(ref, f"{path} is no segment of {name.who}, or was damaged ({size} bytes)")
            if (header.life, header.number) != (name.life, name.number):
                raise self._failure(ref, f"{path} is used for other blocks now; its block was cleared")
            # Private pages are copied when they are first written to.
            access = mmap.ACCESS_COPY if header.single else mmap.ACCESS_READ
            mapped = mmap.mmap(descriptor, header.capacity, access=access)
            return np.frombuffer(mapped, np.uint8), not header.single
        except BlockingIOError as error:
            raise self._failure(ref, f"{path} is about to be used for other blocks; its block was cleared") from error
        except OSError as error:
            raise self._failure(ref, f"cannot map {path}: {error.strerror}; see `ulimit -n` and `ulimit -v`") from error
        finally:
            os.close(descriptor)

    def _failure(self, ref: Ref, why: str) -> DataPlaneError:
        place = f"{ref.size} bytes at {ref.offset} of segment {ref.where!r} ({ref.kind})"
        return DataPlaneError(f"host {host()}: cannot read {place}: {why}")
