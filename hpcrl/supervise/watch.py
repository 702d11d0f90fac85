"""Watching the processes of one slot until the whole run has ended, and ending it well.

A run ends when every process that is no service has left a done-record, on whatever slot; then each ignitor stops the
services of its own slot. One failure anywhere, or a request to stop, ends all work in the same order: workers first, while
the services that they still talk to live on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from hpcrl.run.directory import Attempt
from hpcrl.run.records import DoneRecord, DoneRecords, write_done
from hpcrl.run.stop import StopFlag, back_off
from hpcrl.supervise.children import Child, tail, wait_until_ended

log = logging.getLogger(__name__)

# Services only close sockets; this is for interpreters that are slow to end on a loaded host.
SERVICE_GRACE_S = 20.0


def watch(
    children: Sequence[Child], workers: frozenset[str], attempt: Attempt, *, stop: StopFlag, drain_s: float
) -> DoneRecord | None:
    """Watch until the run has ended everywhere and nothing of this slot is left.

    Args:
        workers: every process of the run, on any slot, that is no service.
        stop: asked to drain.
        drain_s: from the request, or from a failure, until what has not ended is killed [s].

    Returns:
        The first failure of the run, or None.
    """
    records = DoneRecords(attempt)
    asked_at: float | None = None
    pauses = back_off(0.02, 0.5)
    try:
        while True:
            _record_deaths(children, records, attempt)
            failure = records.first_failure()
            if asked_at is None and (failure is not None or stop.is_set()):
                asked_at = time.monotonic()
                log.info("ending: %s", f"{failure.process} failed" if failure else "asked to stop")
                for child in children:
                    if not child.service:
                        child.ask_to_stop()
            if workers <= records.read().keys():
                break
            if asked_at is not None and time.monotonic() - asked_at > drain_s:
                log.error("not ended %g s after being asked to: %s", drain_s, sorted(workers - records.read().keys()))
                break
            # An end of a child is an event; another slot's end is only seen in the records.
            time.sleep(next(pauses))
        return _end_services(children, records, attempt)
    finally:
        for child in children:
            child.kill()


def _end_services(children: Sequence[Child], records: DoneRecords, attempt: Attempt) -> DoneRecord | None:
    services = [child for child in children if child.service]
    for child in services:
        child.ask_to_stop()
    for child in wait_until_ended(services, SERVICE_GRACE_S):
        # Its work is done, so a slow end is no failure of the run; but it is said.
        error = f"did not end {SERVICE_GRACE_S:g} s after being asked to, so it was killed; read {child.log}"
        log.error("%s %s", child.name, error)
        if child.name not in records.read():
            write_done(attempt, DoneRecord(process=child.name, status="stopped", error=error))
    for child in children:
        child.kill()
    _record_deaths(children, records, attempt)
    return records.first_failure()


def _record_deaths(children: Sequence[Child], records: DoneRecords, attempt: Attempt) -> None:
    """A process that ended without a record (killed, out of memory) gets one here."""
    for child in children:
        code = child.ended()
        if code is None or child.name in records.read():
            continue
        how = f"was killed by signal {code - 128}" if code > 128 else f"ended with code {code} and left no record"
        error = f"{child.name} {how}; read {child.log}; its last lines:\n{tail(child.log)}"
        write_done(attempt, DoneRecord(process=child.name, status="failed", code=code or 1, error=error))
