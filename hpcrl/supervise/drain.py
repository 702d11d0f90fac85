"""The request to save and end, as a file in the attempt's directory: it reaches every ignitor on every node."""

from __future__ import annotations

import json
import math
import os
import signal
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from hpcrl.run.atomic import write_json
from hpcrl.run.directory import Attempt
from hpcrl.run.errors import host
from hpcrl.run.stop import StopFlag


@dataclass(frozen=True)
class Drain:
    """A request to save and end.

    Attributes:
        reason: for a person.
        seconds: what has not ended so long after the request was seen is killed [s].
        t: Unix time of the first request, by the clock of who made it [s].
    """

    reason: str
    seconds: float
    t: float


def ask_to_drain(attempt: Attempt, reason: str, seconds: float, *, replace: bool = True) -> None:
    """Ask all ignitors of an attempt; a further request changes the deadline, and counts from when it is seen.

    Args:
        replace: False leaves an earlier request as it is.
    """
    path, value = _path(attempt), asdict(Drain(reason, seconds, time.time()))
    if replace:
        held = drain_of(attempt)
        write_json(path, value if held is None else {**value, "reason": held.reason, "t": held.t})
        return
    beside = path.with_name(f".drain.{uuid.uuid4().hex[:8]}")
    write_json(beside, value)
    try:
        os.link(beside, path)
    except FileExistsError:
        return
    finally:
        beside.unlink()


def drain_of(attempt: Attempt) -> Drain | None:
    """The request, if there is one."""
    try:
        return Drain(**json.loads(_path(attempt).read_text()))
    except FileNotFoundError:
        return None


class DrainTimer:
    """Counts an attempt's request on this process's own clock: nodes need not agree on what time it is."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._seen: Drain | None = None
        self._ends = math.inf

    def is_over(self) -> bool:
        """Whether the time of the newest request has run out since this was first called with that request there."""
        request = drain_of(self._attempt)
        if request != self._seen:
            self._seen = request
            self._ends = math.inf if request is None else time.monotonic() + request.seconds
        return time.monotonic() > self._ends


class DrainFlag(StopFlag):
    """An ignitor's stop: set by the attempt's request or by a signal to the ignitor itself, which then is made a request."""

    def __init__(self, attempt: Attempt, who: str, drain_s: float) -> None:
        super().__init__()
        self._attempt, self._who, self._drain_s = attempt, who, drain_s
        self._signal: signal.Signals | None = None

    def hear(self, numbers: Sequence[signal.Signals]) -> None:
        """Let signals set the flag."""
        for number in numbers:
            signal.signal(number, self._signalled)

    def follow(self, attempt: Attempt) -> None:
        """Be that of a further attempt; a signal that came since :meth:`is_set` was asked is a request to that one."""
        self._attempt = attempt

    def is_set(self) -> bool:
        """Whether the stop was asked for, in whatever way."""
        if self._signal is not None:
            number, self._signal = self._signal, None
            ask_to_drain(self._attempt, f"{number.name} to {self._who} on {host()}", self._drain_s, replace=False)
        if not super().is_set() and drain_of(self._attempt) is not None:
            self.set()
        return super().is_set()

    def _signalled(self, number: int, _: object) -> None:
        self._signal = signal.Signals(number)
        self.set()


def _path(attempt: Attempt) -> Path:
    return attempt.path / "drain"
