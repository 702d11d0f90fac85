"""Asking a role to stop, and waits that hear it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TypeVar

from hpcrl.run.errors import DeadlineExceeded, Stopped

T = TypeVar("T")

# So long a process that is asked to stop waits for an answer of another one: that may have ended for good, and one that comes
# back needs less [s].
STOPPED_S = 15.0


class StopFlag:
    """Set once, from a signal handler or another thread; every wait of a role listens to it.

    No ``threading.Event``: its lock is held for a moment in each wait, and a signal handler that came then, in the same thread,
    would wait for that lock for ever.
    """

    def __init__(self) -> None:
        self._set = False
        # Locked until the stop; who gets it then lets it go at once, to the next one.
        self._gate = threading.Lock()
        self._gate.acquire()

    def set(self) -> None:
        """Ask for the stop. Safe in a signal handler and more than once."""
        if not self._set:
            self._set = True
            self._open()

    def is_set(self) -> bool:
        """Whether the stop was asked for."""
        return self._set

    def sleep(self, seconds: float) -> bool:
        """Wait so long, or until the stop; returns whether the stop was asked for."""
        if not self._set and self._gate.acquire(timeout=min(max(0.0, seconds), threading.TIMEOUT_MAX)):
            self._open()
        return self._set

    def _open(self) -> None:
        # Two that set it at the same moment open it twice.
        with suppress(RuntimeError):
            self._gate.release()


def back_off(first: float = 0.005, last: float = 0.1, factor: float = 1.5) -> Iterator[float]:
    """Growing pauses for a poll [s]: quick while an answer is likely, cheap while it is not."""
    pause = first
    while True:
        yield pause
        pause = min(last, pause * factor)


def wait_for(
    what: str,
    poll: Callable[[], T | None],
    *,
    seconds: float,
    stop: StopFlag | None = None,
    pauses: Iterator[float] | None = None,
) -> T:
    """Poll until an answer that is not None comes.

    Raises:
        DeadlineExceeded: no answer within ``seconds``; the message names ``what``.
        Stopped: ``stop`` was set first.
    """
    deadline = time.monotonic() + seconds
    pauses = pauses if pauses is not None else back_off()
    flag = stop or StopFlag()
    while True:
        answer = poll()
        if answer is not None:
            return answer
        if flag.is_set():
            raise Stopped(f"asked to stop while waiting for {what}")
        left = deadline - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded(f"waited {seconds:g} s for {what}")
        flag.sleep(min(next(pauses), left))
