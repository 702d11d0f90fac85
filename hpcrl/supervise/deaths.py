"""What follows the death of a process that left no record: it is started again in place, or gets a record."""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from collections.abc import Sequence

from hpcrl.run.directory import Attempt
from hpcrl.run.records import DoneRecord, DoneRecords, write_done
from hpcrl.run.tail import tail
from hpcrl.supervise.children import Child
from hpcrl.supervise.signals import STOP
from hpcrl.tracking.journal import Journal

log = logging.getLogger(__name__)


class Deaths:
    """Looks after the processes of one slot.

    Args:
        who: the ignitor, ``ignitor.SLOT``; each restart is written to its journal.
    """

    def __init__(self, children: Sequence[Child], records: DoneRecords, attempt: Attempt, who: str) -> None:
        self._children, self._records, self._attempt, self._who = children, records, attempt, who

    def look(self, *, mend: bool = False, asked: bool = False) -> None:
        """Answer every death since the last look.

        Args:
            mend: what was killed may be started again; without, only the data plane, while roles still save.
            asked: the request to stop was sent, so dying of it is no failure.
        """
        for child in self._children:
            code = child.ended()
            if code is None or child.name in self._records.read():
                continue
            if asked and code == 128 + STOP:
                record = DoneRecord(process=child.name, status="stopped", error="died of the request to stop")
                write_done(self._attempt, record)
            elif code <= 128 or child.killed:
                how = f"was killed by {signal_name(code)}, which its ignitor sent" if code > 128 else f"ended with code {code}"
                self._fail(child, code, f"{how} and left no record")
            # The trainer saves through the data plane, so that is mended during a stop too.
            elif not (mend or (asked and child.restarts.fatal)):
                self._fail(child, code, f"was killed by {signal_name(code)}", killed_by=signal_name(code))
            else:
                self._mend(child, code)

    def _mend(self, child: Child, code: int) -> None:
        name = signal_name(code)
        refusal = child.restarts.take(time.monotonic())
        if refusal is not None:
            # A data plane that dies again and again would do so in the next attempt.
            self._fail(child, code, f"was killed by {name} and {refusal}", killed_by="" if child.restarts.fatal else name)
            return
        pid = child.popen.pid
        child.start_again()
        log.warning(
            "%s, pid %d, was killed by %s; started again, pid %d, incarnation %d",
            child.name,
            pid,
            name,
            child.popen.pid,
            child.incarnation,
        )
        # Opened for this line alone: most ignitors never write one.
        with contextlib.closing(Journal(self._attempt.journal / f"{self._who}.jsonl")) as journal:
            journal.write("restart", process=child.name, signal=name, incarnation=child.incarnation, pid=child.popen.pid)

    def _fail(self, child: Child, code: int, how: str, *, killed_by: str = "") -> None:
        error = f"{child.name} {how}; read {child.log}; its last lines:\n{tail(child.log)}"
        record = DoneRecord(process=child.name, status="failed", code=code or 1, error=error, killed_by=killed_by)
        write_done(self._attempt, record)


def signal_name(code: int) -> str:
    """Of the signal in an exit code as a shell gives it, ``SIGKILL`` of 137."""
    try:
        return signal.Signals(code - 128).name
    except ValueError:
        return f"signal {code - 128}"
