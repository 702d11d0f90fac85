"""Asking the desk of a run that lives, as somebody who only looks."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import TracebackType
from typing import Any

from hpcrl.dataplane.desk.client import DeskClient
from hpcrl.dataplane.interface import DataPlaneError
from hpcrl.dataplane.ledger.ops import Answer, AnyOp, AskDepth, AskWhy, Depths, Refused, Why
from hpcrl.run.directory import Attempt, RunDirectory
from hpcrl.run.errors import CheckFailed
from hpcrl.run.records import DoneRecords
from hpcrl.run.rendezvous import Rendezvous

DESK = "queue.0"
# The desk of a run is restarted within seconds.
CALL_S = 10.0
Figures = dict[str, dict[str, Any]]


class Silent(CheckFailed):
    """There is no desk to ask: the run does not live, or not yet, or not in processes."""


class Observer:
    """A connection to a desk. Use it as a context manager.

    Raises:
        Silent: the run has no desk that could be asked.
        CheckFailed: its key may not be read.
    """

    def __init__(self, run: RunDirectory, *, call_s: float = CALL_S) -> None:
        self.attempt = run.latest()
        endpoint = _endpoint(self.attempt)
        try:
            key = run.key
        except OSError as error:
            raise CheckFailed(
                [f"{run.path / 'key'} cannot be read ({error.strerror}); only who started the run may look into its queue"]
            ) from error
        self._name, self._call_s = f"observer.{os.getpid()}", call_s
        self._address = f"{endpoint['ip']}:{endpoint['port']}"
        self._client = DeskClient(self._name, endpoint, key=key, call_s=call_s)

    def __enter__(self) -> Observer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._client.close()

    def figures(self) -> Figures:
        """By stream, see :func:`hpcrl.dataplane.ledger.why.figures`.

        Raises:
            CheckFailed: the desk does not answer.
        """
        answer = self._ask(lambda seq, oldest: AskDepth(who=self._name, life=0, seq=seq, oldest=oldest))
        assert isinstance(answer, Depths)
        return answer.streams

    def why(self, row: int) -> list[str]:
        """What a row waits for, in sentences; errors as :meth:`figures`."""
        answer = self._ask(lambda seq, oldest: AskWhy(who=self._name, life=0, seq=seq, oldest=oldest, row=row))
        assert isinstance(answer, Why)
        return answer.lines

    def _ask(self, make: Callable[[int, int], AnyOp]) -> Answer:
        try:
            answer = self._client.ask(make, what="look at the queue")
        except DataPlaneError as error:
            raise CheckFailed(
                [
                    f"the desk of attempt {self.attempt.number} at {self._address} does not answer within {self._call_s:g} s; "
                    f"it is restarting, was killed with its node, or cannot be reached from this host: read "
                    f"{self.attempt.log(DESK)}"
                ]
            ) from error
        if isinstance(answer, Refused):
            raise CheckFailed([f"the desk at {self._address}: {answer.reason}"])
        return answer


def _endpoint(attempt: Attempt) -> Any:
    ended = DoneRecords(attempt).read().get(DESK)
    if ended is not None:
        raise Silent([f"attempt {attempt.number} of run {attempt.run.path} has ended ({ended.status}), and its queue with it"])
    endpoint = Rendezvous(attempt.path / "rendezvous", attempt.run.run_id).peek(DESK)
    if endpoint is None:
        raise Silent(
            [
                f"attempt {attempt.number} of run {attempt.run.path} has no desk yet: it is starting, or runs in one process "
                f"(--in-process), whose queue nobody else can look into; see hpcrl status {attempt.run.path}"
            ]
        )
    return endpoint
