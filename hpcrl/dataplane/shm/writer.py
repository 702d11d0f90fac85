"""Segments of one process: filled one block after the other, used again once the ledger knows of nothing in them.

A reader holds a shared lock on a segment's file for as long as anything of it is mapped, so bytes that somebody looks at
never change: a file is used again only under an exclusive lock, with a new number in its name and header. Whoever comes
with an old ref finds no such name.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hpcrl.dataplane.interface import DataPlaneError
from hpcrl.dataplane.ledger.ops import Ref
from hpcrl.dataplane.room import no_room
from hpcrl.dataplane.shm.folders import Claim
from hpcrl.dataplane.shm.layout import ALIGN, Header, SegmentName, aligned, owner_hash, size_class
from hpcrl.run.errors import host

Bytes = bytes | bytearray | memoryview | np.ndarray
# Small, so that a short queue goes round in few pages, which stay warm; large, so that mapping costs little beside copying.
SEGMENT_BYTES = 16 * 2**20
SPARE_BYTES = 128 * 2**20
# More would use up file handles; a segment beyond is mapped again, at some cost, when it is used again.
MAPPED = 256


@dataclass
class _Segment:
    """A file of this life.

    Attributes:
        name: in refs.
        view: uint8 (capacity,) over all of the file; None = not mapped.
        end: where the next block goes.
        made: refs into it.
        unused: those that were discarded.
        released: those that the ledger has released.
    """

    path: Path
    name: str
    capacity: int
    view: np.ndarray | None
    end: int = ALIGN
    made: int = 0
    unused: int = 0
    released: int = 0

    @property
    def is_empty(self) -> bool:
        return self.made == self.unused + self.released


class SegmentWriter:
    """Keeps blocks of bytes in shared memory. Thread-safe; not for use in a forked child.

    Claims the folder for this process until :meth:`close`.

    Args:
        folder: of the attempt; see :func:`hpcrl.dataplane.shm.folders.attempt_folder`.
        who: ``group.rank`` of this process.
        life: of this process; every start has another.
        node: name of this node in the refs.
        segment_bytes: size of a segment; a block larger than a quarter gets one of its own size.
        spare_bytes: how much may wait to be used again; fresh memory is several times slower.

    Raises:
        DataPlaneError: the folder cannot be made or is another user's, or this life has written here already.
    """

    def __init__(
        self,
        folder: Path,
        who: str,
        life: int,
        node: str,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        spare_bytes: int = SPARE_BYTES,
    ) -> None:
        if SegmentName.parse(str(SegmentName(who, life, 0))) is None:
            raise ValueError(f"{who!r}, life {life}: expected group.rank and a number from 0")
        self._folder, self._who, self._life, self._node = folder, who, life, node
        self._segment_bytes = size_class(segment_bytes)
        self._spare_bytes = spare_bytes
        self._owner, self._pid = owner_hash(folder, who), os.getpid()
        self._lock = threading.Lock()
        self._used: dict[str, _Segment] = {}
        self._spares: list[_Segment] = []
        self._current: _Segment | None = None
        self._numbers = 0
        self._closed = False
        self._claim = Claim(folder)
        try:
            (folder / who / str(life)).mkdir(mode=0o700, parents=True)
        except OSError as error:
            self._claim.release()
            raise DataPlaneError(
                f"{who} on {host()}: cannot begin life {life} in {folder / who}: {error.strerror}; "
                "each start of a process needs a life of its own"
            ) from error
        for path in (folder / who).glob("*/*.spare"):
            self._unlink(path)

    def write(self, parts: Sequence[Bytes]) -> Ref:
        """Keep contiguous buffers, one after the other, as one block; errors as :meth:`place`."""
        arrays = [np.frombuffer(part, np.uint8) for part in parts if len(part)]
        size = sum(array.nbytes for array in arrays)
        return self.place(size, lambda out: np.concatenate(arrays, out=out) if arrays else None)

    def place(self, size: int, fill: Callable[[np.ndarray], object]) -> Ref:
        """Keep ``size`` bytes that ``fill`` writes into the uint8 (size,) that it is given.

        Raises:
            DataPlaneError: there is no room; everything written before is as it was.
        """
        if os.getpid() != self._pid:
            raise DataPlaneError(f"{self._who} on {host()}: a forked child may not write its parent's segments; make another")
        with self._lock:
            if self._closed:
                raise DataPlaneError(f"{self._who} on {host()}: its segments are closed; nothing can be written any more")
            segment = self._segment_for(size)
            offset, segment.end = segment.end, segment.end + aligned(size)
            segment.made += 1
            assert segment.view is not None
            out = segment.view[offset : offset + size]
        ref = Ref(kind="shm", size=size, where=segment.name, offset=offset, node=self._node)
        try:
            fill(out)
        except BaseException:
            self.discard([ref])
            raise
        return ref

    def discard(self, refs: Sequence[Ref]) -> None:
        """Refs that the ledger has not been told of and never will be."""
        with self._lock:
            for ref in refs:
                if (segment := self._used.get(ref.where)) is not None:
                    segment.unused += 1
                    self._retire_if_empty(segment)

    def freed(self, released: Mapping[str, int]) -> None:
        """What the ledger says of segments that hold nothing that it knows of: how many refs were released in each, ever.

        One of this life is used again once that is all that were made; one of an earlier life is removed. Names of
        segments that are gone already are no error.
        """
        with self._lock:
            for name, count in released.items():
                parsed = SegmentName.parse(name)
                if parsed is None or parsed.who != self._who:
                    raise DataPlaneError(
                        f"{self._who} on {host()}: was told that segment {name!r} is free, which is not its own"
                    )
                if (segment := self._used.get(name)) is not None:
                    segment.released = max(segment.released, count)
                    self._retire_if_empty(segment)
                elif parsed.life < self._life:
                    self._unlink(self._folder / name)

    def earlier(self) -> list[str]:
        """Segments that earlier lives of this process left."""
        paths = (self._folder / self._who).glob("*/*.seg")
        names = [SegmentName.parse(path.relative_to(self._folder).as_posix()) for path in paths]
        return sorted(str(name) for name in names if name is not None and name.life < self._life)

    def close(self) -> None:
        """Let go of the folder and remove what holds nothing; what others may still read stays. Safe to call twice."""
        with self._lock:
            for segment in [*self._spares, *(one for one in self._used.values() if one.is_empty)]:
                self._unlink(segment.path)
            self._used.clear()
            self._spares.clear()
            self._current = None
            self._closed = True
            self._claim.release()

    def _segment_for(self, size: int) -> _Segment:
        if size > self._segment_bytes // 4:
            return self._open(size_class(ALIGN + aligned(size)), single=True)
        current = self._current
        if current is None or current.end + aligned(size) > current.capacity:
            self._current = self._open(self._segment_bytes, single=False)
            if current is not None:
                self._retire_if_empty(current)
            return self._current
        return current

    def _open(self, capacity: int, *, single: bool) -> _Segment:
        name = str(SegmentName(self._who, self._life, self._numbers))
        header = Header(self._owner, self._life, self._numbers, capacity, single)
        segment = self._open_spare(name, header) or _make(self._folder / name, name, header)
        self._numbers += 1
        mapped = [one for one in self._used.values() if one.view is not None and one is not self._current]
        if len(mapped) >= MAPPED:
            mapped[0].view = None
        self._used[name] = segment
        return segment

    def _open_spare(self, name: str, header: Header) -> _Segment | None:
        """The oldest spare of about the size that nobody else maps, under a new name; None if there is none."""
        for spare in self._spares:
            if header.capacity <= spare.capacity <= 2 * header.capacity:
                again = _use_again(spare, self._folder / name, name, replace(header, capacity=spare.capacity))
                if again is not None:
                    self._spares.remove(spare)
                    return again
        return None

    def _retire_if_empty(self, segment: _Segment) -> None:
        if segment is self._current or not segment.is_empty:
            return
        del self._used[segment.name]
        with contextlib.suppress(FileNotFoundError):  # A later life of the process may have removed it.
            segment.path = segment.path.rename(segment.path.with_suffix(".spare"))
            self._spares.append(segment)
        while sum(spare.capacity for spare in self._spares) > self._spare_bytes:
            self._unlink(self._spares.pop(0).path)

    def _unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        if path.parent.name != str(self._life):
            with contextlib.suppress(OSError):
                path.parent.rmdir()


def _make(path: Path, name: str, header: Header) -> _Segment:
    descriptor = -1
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        # Without its pages a full file system would end the process at some later write to the mapping.
        os.posix_fallocate(descriptor, 0, header.capacity)
        os.pwrite(descriptor, header.pack(), 0)
        return _Segment(path, name, header.capacity, np.frombuffer(mmap.mmap(descriptor, header.capacity), np.uint8))
    except OSError as error:
        path.unlink(missing_ok=True)
        raise no_room(path, header.capacity, error) from error
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _use_again(spare: _Segment, path: Path, name: str, header: Header) -> _Segment | None:
    """The spare as a new segment; None while somebody else maps it, or if it cannot be: a later life may have removed it."""
    descriptor = -1
    try:
        descriptor = os.open(spare.path, os.O_RDWR | os.O_CLOEXEC)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        view = spare.view
        if view is None:
            flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
            view = np.frombuffer(mmap.mmap(descriptor, spare.capacity, flags), np.uint8)
        os.pwrite(descriptor, header.pack(), 0)
        spare.path.rename(path)
        # The mapping keeps the file open, and a lock with it.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except OSError:
        return None
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    return _Segment(path, name, spare.capacity, view)
