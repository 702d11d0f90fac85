"""Writing the history: at once, or by a thread that never lets a slow file system hold up the ledger."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hpcrl.dataplane.history.files import compress, numbered, raw_path
from hpcrl.dataplane.history.frames import MAGIC, FrameEncoder
from hpcrl.dataplane.history.reader import following_number
from hpcrl.dataplane.ledger.events import Event

log = logging.getLogger(__name__)

# More than this is not kept for a disk that takes nothing.
MAX_PENDING = 200_000
RETRY_S = 1.0


class HistoryWriter:
    """Appends events to the history of an attempt. Thread-safe; one writer at a time in a folder.

    Every write is one ``write(2)``: what it took survives the end of this process, not of its node.

    Args:
        folder: ``RUN/attempt_N/history``; made if it is not there.
        delay_s: 0 writes in ``append`` itself; more leaves it to a thread, which writes together what came within this
            time [s]. What a killed process had not written the ledger must then make again, from its own log.
        rotate_bytes: a file that has grown to this size is closed and compressed, and another is begun.

    Attributes:
        lost: events that a full disk would not take.

    Raises:
        OSError: the folder cannot be made.
    """

    def __init__(self, folder: Path, *, delay_s: float = 0.0, rotate_bytes: int = 64 << 20) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._delay_s, self._rotate_bytes = folder, delay_s, rotate_bytes
        self._changed = threading.Condition()
        self._writing = threading.Lock()
        self._next = self._written = following_number(folder)
        self._pending: list[Event] = []
        self._descriptor, self._path, self._size = -1, folder, 0
        self._encoder = FrameEncoder()
        self._packing: list[threading.Thread] = []
        self._closed, self._failed, self._again_at = False, "", 0.0
        self.lost = 0
        self._thread: threading.Thread | None = None
        if delay_s > 0:
            self._thread = threading.Thread(target=self._write_on, name="history", daemon=True)
            self._thread.start()

    @property
    def written(self) -> int:
        """Every event of a lower number is on disk (or lost)."""
        return self._written

    def append(self, number: int, events: Sequence[Event]) -> None:
        """Add the events that the ledger numbers ``number`` and following; those that it made before a restart are left out.

        Raises:
            ValueError: the writer is closed.
        """
        if number > self._next:
            self._skip_to(number)
        with self._changed:
            if self._closed:
                raise ValueError(f"the history in {self._folder} is closed")
            fresh = events[self._next - number :]
            if not fresh:
                return
            if self._thread is not None and not self._pending:
                self._changed.notify_all()
            self._pending += fresh
            self._next += len(fresh)
        if self._thread is None:
            self.flush()

    def flush(self) -> None:
        """Write now what is left to write. What a full disk refuses is tried again with what comes next."""
        with self._writing:
            with self._changed:
                events, self._pending, number = self._pending, [], self._written
            if not events:
                return
            if self._failed and not self._closed and time.monotonic() < self._again_at:
                self._keep(events)
                return
            try:
                self._write(self._encode(number, events))
            except OSError as error:
                self._give_up_file(error)
                self._keep(events)
                return
            self._written = number + len(events)
            if self._failed:
                log.info("the history in %s is written again; %d events were lost", self._folder, self.lost)
                self._failed = ""
            if self._size >= self._rotate_bytes:
                self._end_file()

    def close(self) -> None:
        """Write the rest, and compress the file."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self.flush()
        with self._writing:
            self._end_file()
        for thread in self._packing:
            thread.join()

    def _write_on(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._closed)
                if self._closed:
                    return
                # From the first event on, so that none waits for longer than this.
                self._changed.wait_for(lambda: self._closed, timeout=self._delay_s)
            self.flush()

    def _encode(self, number: int, events: Sequence[Event]) -> bytes:
        if self._descriptor < 0:
            self._begin_file()
        return self._encoder.encode(number, events)

    def _begin_file(self) -> None:
        number = max(numbered(self._folder), default=0) + 1
        path = raw_path(self._folder, number)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        self._path, self._size, self._encoder = path, 0, FrameEncoder()
        self._write(MAGIC)

    def _write(self, data: bytes) -> None:
        done = 0
        while done < len(data):
            done += os.write(self._descriptor, memoryview(data)[done:])
        self._size += len(data)

    def _skip_to(self, number: int) -> None:
        """Leave a gap, which readers report: what is not there cannot be made up."""
        self.flush()
        with self._writing, self._changed:
            log.error("the history in %s has no events %d to %d", self._folder, self._written, number - 1)
            self.lost += number - self._written
            self._pending, self._next, self._written = [], number, number

    def _give_up_file(self, error: OSError) -> None:
        """Another file takes the events later, as the tables of this one's encoder are ahead of what it holds."""
        if not self._failed:
            log.warning("the history %s cannot be written: %s; trying on", self._path, error.strerror)
        self._failed, self._again_at = str(error), time.monotonic() + RETRY_S
        if self._descriptor < 0:
            return
        with suppress(OSError):
            os.ftruncate(self._descriptor, self._size)
        if self._size <= len(MAGIC):
            with suppress(OSError):
                self._path.unlink()
                os.close(self._descriptor)
            self._descriptor = -1
        self._end_file()

    def _keep(self, events: list[Event]) -> None:
        with self._changed:
            kept = events + self._pending
            drop = max(0, len(kept) - MAX_PENDING)
            self._pending = kept[drop:]
            self._written += drop
            self.lost += drop

    def _end_file(self) -> None:
        if self._descriptor < 0:
            return
        with suppress(OSError):
            os.close(self._descriptor)
        self._descriptor = -1
        thread = threading.Thread(target=_compress, args=(self._path,), name="history-compress", daemon=True)
        self._packing = [item for item in self._packing if item.is_alive()] + [thread]
        thread.start()


def _compress(path: Path) -> None:
    try:
        compress(path)
    except OSError as error:
        log.warning("the history %s stays uncompressed: %s", path, error.strerror)
