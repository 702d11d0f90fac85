"""The request to save and end, as a file in the attempt's directory: it reaches every ignitor on every node."""

from __future__ import annotations

import json
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
        until: Unix time at which what has not ended is killed [s].
        t: Unix time of the request [s].
    """

    reason: str
    until: float
    t: float


def ask_to_drain(attempt: Attempt, reason: str, seconds: float, *, replace: bool = True) -> None:
    """Ask all ignitors of an attempt; a further request changes the deadline.

    Args:
        replace: False leaves an earlier request as it is.
    """
    path, now = _path(attempt), time.time()
    value = asdict(Drain(reason, now + seconds, now))
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
