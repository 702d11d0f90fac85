"""A write-ahead log: whatever was appended survives the end of the process.

::

    bytes 0-7   magic
    frames      magic, uint32 length, uint64 checksum, payload; little-endian

A frame's checksum is seeded with its place and kind, so no copy of a frame elsewhere, as within a payload, passes for one.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import xxhash

from hpcrl.dataplane.interface import DataPlaneError
from hpcrl.dataplane.room import no_room
from hpcrl.run.atomic import sync as sync_path
from hpcrl.run.errors import host

Kind = Literal["state", "record"]

_FILE = b"hpcrlwal"
_MAGIC = b"\xf5\x1eWL"
_FRAME = struct.Struct("<4sIQ")
_KINDS: tuple[Kind, ...] = ("record", "state")
_MAX = 2**32 - 1


class WriteAheadLog:
    """A log with one writer. Thread-safe; not for use in a forked child.

    :meth:`replay` an existing log to its end before the first append.

    Args:
        path: made if it is not there, mode 0600.
        sync: make every append durable against the end of the node too; needed on a disk only.

    Attributes:
        size: bytes of the log.
        grown: bytes appended since the newest state: compact when they are several times ``size - grown``.
        cut: bytes of a torn tail that the replay removed.

    Raises:
        DataPlaneError: another process has the log open, or the file is none, or it cannot be opened.
    """

    def __init__(self, path: Path, *, sync: bool = False) -> None:
        self.path, self._sync, self._pid = path, sync, os.getpid()
        self._beside = path.with_name(f".{path.name}.new")
        self._lock = threading.Lock()
        self.grown = self.cut = 0
        self._broken = ""
        self._descriptor = _open_alone(path)
        try:
            self._beside.unlink(missing_ok=True)
            head = os.pread(self._descriptor, len(_FILE), 0)
            if head != _FILE:
                if not _FILE.startswith(head):
                    raise DataPlaneError(f"host {host()}: {path} is no write-ahead log; move it away")
                # Empty, or its maker was killed within the first write.
                self._rewind(0)
                self._write(_FILE)
            self.size = os.fstat(self._descriptor).st_size
            self._replayed = self.size == len(_FILE)
        except BaseException:
            os.close(self._descriptor)
            raise

    def replay(self) -> Iterator[tuple[Kind, bytes]]:
        """The state that the log begins with, if there is one, and everything appended since, in order.

        A tail that its writer was killed in is removed.

        Raises:
            DataPlaneError: bytes in the middle of the file were changed; nothing is removed.
        """
        data = self.path.read_bytes()
        view = memoryview(data)
        at = base = len(_FILE)
        while (frame := _frame_at(view, at)) is not None:
            kind, payload, at = frame
            base = at if kind == "state" else base
            yield kind, payload
        if (good := _next_frame(data, at + 1)) is not None:
            raise DataPlaneError(
                f"host {host()}: {self.path} is damaged from byte {at} on, and whole again from byte {good} of {len(data)}; "
                "what happened between is not known: keep a copy of it and start the attempt from the newest snapshot"
            )
        with self._lock:
            if not self._replayed:
                self._rewind(at)
                self.cut = len(data) - at
                self.size, self.grown, self._replayed = at, at - base, True

    def append(self, *records: bytes) -> None:
        """Add records, in one write; once it returns they survive.

        Raises:
            DataPlaneError: there is no room. The log is as it was before and none of the records is in it.
        """
        with self._lock:
            self._check()
            start = end = self.size
            frames = []
            for record in records:
                frames.append(_frame("record", record, end))
                end += len(frames[-1])
            try:
                self._write(b"".join(frames))
                self.size = end
            except BaseException:
                self._rewind(start)
                self.size = start
                raise
            self.grown += end - start

    def compact(self, state: bytes) -> None:
        """Begin anew from a state that stands for everything appended so far; in one step, whatever happens meanwhile.

        Raises:
            DataPlaneError: there is no room; the log is as it was.
        """
        with self._lock:
            self._check()
            content = _FILE + _frame("state", state, len(_FILE))
            try:
                descriptor = self._write_beside(content)
            except OSError as error:
                self._beside.unlink(missing_ok=True)
                raise no_room(self.path, len(content), error) from error
            # Were this thread interrupted from here on, appends might go to the file that was replaced.
            self._broken = "was left in the middle of a compaction"
            try:
                self._beside.rename(self.path)
                sync_path(self.path.parent)
            except BaseException:
                os.close(descriptor)
                raise
            os.close(self._descriptor)
            self._descriptor, self.size, self.grown = descriptor, len(content), 0
            self._broken = ""

    def close(self) -> None:
        """Let others open it. Safe to call twice."""
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor, self._broken = -1, "was closed"

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise DataPlaneError(f"host {host()}: {self.path} belongs to the parent of this process; a child may not write it")
        if self._broken:
            raise DataPlaneError(f"host {host()}: {self.path} {self._broken}; open it again and replay it")
        if not self._replayed:
            raise DataPlaneError(
                f"host {host()}: {self.path} holds {self.size} bytes; replay it to its end before writing to it"
            )

    def _write(self, data: bytes) -> None:
        try:
            _write_all(self._descriptor, data)
            if self._sync:
                os.fdatasync(self._descriptor)
        except OSError as error:
            raise no_room(self.path, len(data), error) from error

    def _write_beside(self, content: bytes) -> int:
        descriptor = os.open(self._beside, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            # Locked before it has the name under which others look.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _write_all(descriptor, content)
            os.fsync(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _rewind(self, size: int) -> None:
        """Take back all after ``size`` bytes."""
        self._broken = "could not be cut back after a failed write"
        os.ftruncate(self._descriptor, size)
        self._broken = ""


def _open_alone(path: Path) -> int:
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise DataPlaneError(f"host {host()}: cannot open {path}: {error.strerror}; see `ls -ld {path.parent}`") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A compaction may have put another file in its place in the meantime.
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
            os.close(descriptor)
        except BlockingIOError as error:
            os.close(descriptor)
            raise DataPlaneError(
                f"host {host()}: another process writes {path}; see `lslocks`, and end it before a second one is started"
            ) from error


def _write_all(descriptor: int, data: bytes) -> None:
    """In one call of the system, unless it takes less: a full file system says so at the next."""
    written = os.write(descriptor, data)
    while written < len(data):
        written += os.write(descriptor, memoryview(data)[written:])


def _frame(kind: Kind, payload: bytes, at: int) -> bytes:
    if len(payload) > _MAX:
        raise ValueError(f"{len(payload)} bytes are too many for one record")
    return _FRAME.pack(_MAGIC, len(payload), _checksum(kind, payload, at)) + payload


def _frame_at(data: memoryview, at: int) -> tuple[Kind, bytes, int] | None:
    """Kind and payload of the frame that begins there, and where it ends; None if there is no whole one."""
    start = at + _FRAME.size
    if start > len(data):
        return None
    magic, length, checksum = _FRAME.unpack_from(data, at)
    if magic != _MAGIC or start + length > len(data):
        return None
    payload = data[start : start + length]
    for kind in _KINDS:
        if checksum == _checksum(kind, payload, at):
            return kind, bytes(payload), start + length
    return None


def _next_frame(data: bytes, start: int) -> int | None:
    """Where the first whole frame from there on begins."""
    view = memoryview(data)
    while (start := data.find(_MAGIC, start)) >= 0:
        if _frame_at(view, start) is not None:
            return start
        start += 1
    return None


def _checksum(kind: Kind, payload: bytes | memoryview, at: int) -> int:
    return xxhash.xxh3_64_intdigest(payload, seed=2 * at + _KINDS.index(kind))
