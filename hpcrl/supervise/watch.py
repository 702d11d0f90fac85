"""Watching the processes of one slot until the whole run has ended, and ending it well.

A run ends when every process that is no service has left a done-record, on whatever slot; then each ignitor stops the
roles of its own slot that are services, and once those have ended on every slot, the queue's processes, which all roles talk
to until their end. One failure or early stop anywhere, or a request to stop, ends all work in the same order.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from hpcrl.run.directory import Attempt
from hpcrl.run.records import DoneRecord, DoneRecords, write_done
from hpcrl.run.stop import StopFlag, back_off
from hpcrl.supervise.children import Child, tail, wait_until_ended
from hpcrl.supervise.drain import DrainTimer
from hpcrl.supervise.signals import STOP

log = logging.getLogger(__name__)

# Services only close sockets; this is for interpreters that are slow to end on a loaded host. Together less than what
# the launcher grants an ignitor (IGNITOR_GRACE_S).
SERVICE_GRACE_S = 20.0
QUEUE_GRACE_S = 10.0


def watch(
    children: Sequence[Child],
    workers: frozenset[str],
    attempt: Attempt,
    *,
    stop: StopFlag,
    drain_s: float,
    roles: frozenset[str] = frozenset(),
) -> DoneRecord | None:
    """Watch until the run has ended everywhere and nothing of this slot is left.

    Args:
        workers: every process of the run, on any slot, that is no service.
        stop: asked to drain.
        drain_s: from the request, or from a failure, until what has not ended is killed [s]; the attempt's own request may
            leave less.
        roles: every process of the run, on any slot, that needs the queue. Services that are none of them end last.

    Returns:
        The first failure of the run, or None.
    """
    records = DoneRecords(attempt)
    timer = DrainTimer(attempt)
    asked_at: float | None = None
    pauses = back_off(0.02, 0.5)
    try:
        while True:
            _record_deaths(children, records, attempt, asked=asked_at is not None)
            failure = records.first_failure()
            stopped = [name for name, record in records.read().items() if name in workers and record.status == "stopped"]
            # Asked each time: an ignitor that was signalled then tells the others so, whatever else has happened.
            asked = stop.is_set()
            if asked_at is None and (failure is not None or stopped or asked):
                asked_at = time.monotonic()
                why = f"{failure.process} failed" if failure else f"{stopped[0]} was stopped" if stopped else "asked to stop"
                log.info("ending: %s", why)
                for child in children:
                    if not child.service:
                        child.ask_to_stop()
            if workers <= records.read().keys():
                break
            if timer.is_over() or (asked_at is not None and time.monotonic() - asked_at > drain_s):
                log.error("not ended in the time to save and end: %s", sorted(workers - records.read().keys()))
                for child in children:
                    if not child.service:
                        child.kill()
                _record_deaths(children, records, attempt)
                break
            # An end of a child is an event; another slot's end is only seen in the records.
            time.sleep(next(pauses))
        return _end_services(children, roles, records, attempt)
    finally:
        for child in children:
            child.kill()


def _end_services(
    children: Sequence[Child], roles: frozenset[str], records: DoneRecords, attempt: Attempt
) -> DoneRecord | None:
    deadline, pauses = time.monotonic() + SERVICE_GRACE_S, back_off(0.02, 0.2)
    _end([child for child in children if child.service and child.name in roles], SERVICE_GRACE_S, records, attempt)
    _record_deaths(children, records, attempt)
    while not roles <= records.read().keys() and time.monotonic() < deadline:
        time.sleep(next(pauses))
    _end([child for child in children if child.service and child.name not in roles], QUEUE_GRACE_S, records, attempt)
    for child in children:
        child.kill()
    _record_deaths(children, records, attempt)
    return records.first_failure()


def _end(services: Sequence[Child], seconds: float, records: DoneRecords, attempt: Attempt) -> None:
    for child in services:
        child.ask_to_stop()
    for child in wait_until_ended(list(services), seconds):
        # Its work is done, so a slow end is no failure of the run; but it is said.
        error = f"did not end {seconds:g} s after being asked to, so it was killed; read {child.log}"
        log.error("%s %s", child.name, error)
        if child.name not in records.read():
            write_done(attempt, DoneRecord(process=child.name, status="stopped", error=error))
        child.kill()


def _record_deaths(children: Sequence[Child], records: DoneRecords, attempt: Attempt, *, asked: bool = False) -> None:
    """A process that ended without a record (killed, out of memory) gets one here.

    Args:
        asked: the request to stop was sent, so dying of it is no failure.
    """
    for child in children:
        code = child.ended()
        if code is None or child.name in records.read():
            continue
        if asked and code == 128 + STOP:
            write_done(attempt, DoneRecord(process=child.name, status="stopped", error="died of the request to stop"))
            continue
        how = f"was killed by signal {code - 128}" if code > 128 else f"ended with code {code} and left no record"
        error = f"{child.name} {how}; read {child.log}; its last lines:\n{tail(child.log)}"
        write_done(attempt, DoneRecord(process=child.name, status="failed", code=code or 1, error=error))
