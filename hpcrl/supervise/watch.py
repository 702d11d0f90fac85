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
from hpcrl.supervise.children import Child, wait_until_ended
from hpcrl.supervise.deaths import Deaths
from hpcrl.supervise.drain import DrainTimer
from hpcrl.supervise.linux import sleep_until_an_end
from hpcrl.supervise.spares import Spares

log = logging.getLogger(__name__)

# Services only close sockets; this is for interpreters that are slow to end on a loaded host. Together less than what
# the launcher grants an ignitor (IGNITOR_GRACE_S).
SERVICE_GRACE_S = 20.0
# Where a process was killed another attempt waits, and a role that is a service has nothing to save.
LOST_GRACE_S = 0.5
QUEUE_GRACE_S = 10.0


def watch(
    children: Sequence[Child],
    workers: frozenset[str],
    attempt: Attempt,
    *,
    stop: StopFlag,
    drain_s: float,
    roles: frozenset[str] = frozenset(),
    who: str = "ignitor.0",
    spares: Spares | None = None,
) -> DoneRecord | None:
    """Watch until the run has ended everywhere and nothing of this slot is left.

    Args:
        workers: every process of the run, on any slot, that is no service.
        stop: asked to drain.
        drain_s: from the request, or from a failure, until what has not ended is killed [s]; the attempt's own request may
            leave less.
        roles: every process of the run, on any slot, that needs the queue. Services that are none of them end last.
        who: this ignitor; names its journal.
        spares: made while the slot is calm, and let go once the run ends.

    Returns:
        The first failure of the run, or None.
    """
    records = DoneRecords(attempt)
    deaths = Deaths(children, records, attempt, who)
    timer = DrainTimer(attempt)
    asked_at: float | None = None
    pauses = back_off(0.02, 0.5)
    try:
        while True:
            # Asked each time: an ignitor that was signalled then tells the others so, whatever else has happened.
            asked = stop.is_set()
            # The end of a failed or stopped run is near even where this ignitor has not yet heard of it.
            ending = asked or asked_at is not None or records.first_failure() is not None
            deaths.look(mend=not ending, asked=asked_at is not None)
            failure = records.first_failure()
            if spares is not None:
                _tend(spares, children, failure, over=ending)
            stopped = [name for name, record in records.read().items() if name in workers and record.status == "stopped"]
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
                deaths.look()
                break
            # Another slot's end is only seen in the records.
            sleep_until_an_end([child.popen.pid for child in children if child.ended() is None], next(pauses))
        if spares is not None:
            _tend(spares, children, records.first_failure(), over=True)
        return _end_services(children, roles, records, attempt, deaths)
    finally:
        for child in children:
            child.kill()


def _tend(spares: Spares, children: Sequence[Child], failure: DoneRecord | None, *, over: bool) -> None:
    if not over:
        spares.tend([child.popen.pid for child in children])
    elif not (spares.outlast and failure is not None and failure.killed_by):
        spares.close()


def _end_services(
    children: Sequence[Child], roles: frozenset[str], records: DoneRecords, attempt: Attempt, deaths: Deaths
) -> DoneRecord | None:
    failure = records.first_failure()
    seconds = LOST_GRACE_S if failure is not None and failure.killed_by else SERVICE_GRACE_S
    deadline, pauses = time.monotonic() + SERVICE_GRACE_S, back_off(0.02, 0.2)
    _end([child for child in children if child.service and child.name in roles], seconds, records, attempt)
    deaths.look()
    while not roles <= records.read().keys() and time.monotonic() < deadline:
        time.sleep(next(pauses))
    _end([child for child in children if child.service and child.name not in roles], QUEUE_GRACE_S, records, attempt)
    for child in children:
        child.kill()
    deaths.look()
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
