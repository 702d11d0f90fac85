"""When the desk has a snapshot made, and by whom: a process beside it, so that nobody waits for it."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from hpcrl.dataplane.ledger.records import LiveBlock
from hpcrl.dataplane.snapshot.request import (
    COMMIT,
    KEEP_OUT,
    Done,
    Failed,
    LeftOut,
    Reply,
    Request,
    decode_reply,
    encode_request,
)

log = logging.getLogger(__name__)

# A snapshot that takes longer than this is given up.
SLOWEST_S = 900.0
# For the last one, at the desk's stop: less than what the ignitor grants (QUEUE_GRACE_S), by the end of everything else.
LAST_S = 7.0
_NICE = 10
_MODULE = "hpcrl.dataplane.snapshot.agent"


class Live(Protocol):
    """What a snapshot needs of a ledger; :class:`hpcrl.dataplane.ledger.ledger.Ledger`."""

    @property
    def events(self) -> int:
        """How many events were made."""

    def live_refs(self) -> Any:
        """Every live block."""

    def holds(self, stream: str, first: int) -> bool:
        """Whether a block lives."""


class Snapshots:
    """Has a snapshot made every so often, one at a time. A slow or failed one is logged and harms nobody.

    Args:
        request: what all have in common.
        storage: gives the endpoints of the storage units once they are known.
        every_s: between two starts [s]; 0 = none but the last.
        kept: whether the run has an earlier one, which an empty queue makes obsolete.
    """

    def __init__(
        self, request: Request, *, storage: Callable[[], Sequence[Mapping[str, Any]]], every_s: float, kept: bool
    ) -> None:
        self._request, self._storage, self._every_s, self._kept = request, storage, every_s, kept
        self._due = time.monotonic() + every_s
        self._seen = -1
        self._making: _Making | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def tend(self, ledger: Live) -> None:
        """Begin one if it is time, and see to the one being made; to be called often, between operations."""
        if self._making is not None:
            self._see_to(self._making, ledger)
        elif self._every_s > 0 and time.monotonic() >= self._due:
            self._due = time.monotonic() + self._every_s
            self._begin(ledger, nice=_NICE)

    def last(self, ledger: Live, seconds: float = LAST_S) -> None:
        """Make the last one, if anything changed since the newest; the ledger must not change meanwhile."""
        until = time.monotonic() + seconds
        # One that is nearly done is better than two that are not.
        self._await(ledger, until - seconds / 2)
        self._begin(ledger, nice=0)
        self._await(ledger, until)
        if self._process is not None:
            _end(self._process)

    def _await(self, ledger: Live, until: float) -> None:
        while (making := self._making) is not None:
            making.noted.wait(max(0.0, min(until - time.monotonic(), 0.2)))
            self._see_to(making, ledger)
            if self._making is not None and time.monotonic() >= until:
                making.give_up("there is no more time for it; the one before stays")
                making.join()

    def _begin(self, ledger: Live, *, nice: int) -> None:
        if ledger.events == self._seen:
            return
        began = time.perf_counter()
        blocks = list(ledger.live_refs())
        if not blocks and not self._kept:
            return
        held_ms = (time.perf_counter() - began) * 1e3
        request = msgspec.structs.replace(
            self._request, ledger_seq=ledger.events, storage=[dict(one) for one in self._storage()], nice=nice
        )
        log.info("snapshot of %d blocks begun; looking at them took %.1f ms", len(blocks), held_ms)
        self._making = _Making(request, blocks, self._process)
        self._making.start()

    def _see_to(self, making: _Making, ledger: Live) -> None:
        if making.left is not None:
            alive = [one for one in making.left.blocks if ledger.holds(*one)]
            if alive:
                stream, first = alive[0]
                making.give_up(
                    f"{len(alive)} live blocks cannot be read, such as rows {first}… of stream {stream!r}: {making.left.why}"
                )
            making.answer(commit=not alive)
        if making.is_alive():
            return
        self._making, self._process = None, making.process
        done = making.result
        if isinstance(done, Done):
            self._seen, self._kept = making.request.ledger_seq, done.rows > 0
            log.info("snapshot %d: %d rows, %.1f MB in %.2f s", done.number, done.rows, done.bytes / 1e6, done.seconds)
            for problem in done.problems:
                log.warning("%s", problem)
        else:
            log.warning("no snapshot of the queue was made: %s", done.error)


class _Making(threading.Thread):
    """One being made.

    Attributes:
        noted: set when something is to be seen to.
        left: what it could not read; it waits for :meth:`answer`.
        result: once the thread has ended.
        process: that makes it, kept for the next one, as its start takes longer than all else; None after a failure.
    """

    def __init__(self, request: Request, blocks: list[LiveBlock], process: subprocess.Popen[bytes] | None) -> None:
        super().__init__(name="snapshot", daemon=True)
        self.request = request
        self.noted = threading.Event()
        self.left: LeftOut | None = None
        self.result: Done | Failed = Failed("it was not begun")
        self._blocks: Sequence[LiveBlock] = blocks
        self._answered = threading.Event()
        self._commit = False
        self._given_up = ""
        self.process = process

    def run(self) -> None:
        """Start the process and see it through."""
        timer = threading.Timer(SLOWEST_S, self.give_up, [f"it took more than {SLOWEST_S:g} s"])
        timer.daemon = True
        timer.start()
        try:
            if self.process is None:
                self.process = subprocess.Popen([sys.executable, "-m", _MODULE], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            if not self._given_up:
                self.result = self._see_through(self.process)
        except (OSError, msgspec.MsgspecError) as error:
            self.result = Failed(f"the process that makes it: {error}")
        timer.cancel()
        if self._given_up:
            self.result = Failed(self._given_up)
        if isinstance(self.result, Failed) and self.process is not None:
            _end(self.process)
            self.process = None
        self.noted.set()

    def answer(self, *, commit: bool) -> None:
        """What it could not read is gone, so it may be committed; or not."""
        self.left, self._commit = None, commit
        self.noted.clear()
        self._answered.set()

    def give_up(self, why: str) -> None:
        """End it."""
        self._given_up = why
        self._answered.set()
        if (process := self.process) is not None:
            process.kill()

    def _see_through(self, process: subprocess.Popen[bytes]) -> Done | Failed:
        assert process.stdin is not None
        for piece in encode_request(self.request, self._blocks):
            process.stdin.write(piece)
        process.stdin.flush()
        self._blocks = ()
        reply = self._reply(process)
        if isinstance(reply, LeftOut):
            self.left = reply
            self.noted.set()
            self._answered.wait()
            process.stdin.write(COMMIT if self._commit else KEEP_OUT)
            process.stdin.flush()
            reply = self._reply(process)
        return reply if not isinstance(reply, LeftOut) else Failed("it answered twice")

    def _reply(self, process: subprocess.Popen[bytes]) -> Reply:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            return Failed(f"the process that makes it ended with {process.wait()}; see above")
        return decode_reply(line)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    process.wait()
