"""Reading a history back: every event once, in order, whatever a crash has left."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from hpcrl.dataplane.history.files import PACKED, numbered, opened
from hpcrl.dataplane.history.frames import FrameDecoder, next_number, read_frames
from hpcrl.dataplane.ledger.events import Event


class HistoryReader:
    """Reads the history of one attempt, while it is written or after.

    Attributes:
        missing: what is not there and should be, a sentence each; complete once all was read.
        events: given so far.
        repeated: events that stood there twice and were given once.
        bytes: that the files take on disk.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.missing: list[str] = []
        self.events = self.repeated = self.bytes = 0

    def read(self) -> Iterator[tuple[int, Event]]:
        """Yield each event with its number. The end of a file that a crash has cut is left out, silently."""
        expected = 0
        files = numbered(self._folder)
        for number in sorted(set(range(1, max(files, default=0) + 1)) - set(files)):
            self.missing.append(f"{self._folder}: file {number:05d} is not there")
        for path in files.values():
            for first, events in self._frames(path):
                if first > expected:
                    self.missing.append(f"{path}: events {expected} to {first - 1} are not there")
                known = max(0, min(len(events), expected - first))
                self.repeated += known
                self.events += len(events) - known
                expected = max(expected, first + len(events))
                for index in range(known, len(events)):
                    yield first + index, events[index]

    def _frames(self, path: Path) -> Iterator[tuple[int, list[Event]]]:
        decoder = FrameDecoder()
        try:
            with opened(path) as file:
                for body in read_frames(file):
                    yield decoder.decode(body)
            size = _size(path)
            self.bytes += size
            if size == 0 and path.name.endswith(PACKED):
                self.missing.append(f"{path} is empty")
        except (OSError, EOFError, zlib.error, ValueError, msgspec.MsgspecError) as error:
            self.missing.append(f"{path} cannot be read to its end: {error}")


def following_number(folder: Path) -> int:
    """The number that follows the last event on disk; 0 where there is none. What cannot be read counts as not there."""
    following = 0
    for path in reversed(numbered(folder).values()):
        last = None
        try:
            with opened(path) as file:
                for last in read_frames(file):  # noqa: B007 - the last one is wanted
                    pass
        except (OSError, EOFError, zlib.error, ValueError):
            pass
        if last is not None:
            following = next_number(last)
            break
    return following


def _size(path: Path) -> int:
    for form in (path, path.with_name(path.name + ".gz")):
        try:
            return form.stat().st_size
        except FileNotFoundError:
            # It was compressed meanwhile.
            continue
    return 0
