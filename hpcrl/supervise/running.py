"""The outer edge of every process of a run: run its work to the end and leave the record of how it ended."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable

from hpcrl.run.directory import Attempt
from hpcrl.run.errors import HpcrlError, RoleFailed, Stopped
from hpcrl.run.records import DoneRecord, write_done
from hpcrl.run.stop import StopFlag

log = logging.getLogger(__name__)


def run_to_record(attempt: Attempt, process: str, work: Callable[[], None], *, stop: StopFlag, service: bool) -> DoneRecord:
    """Do a process's work, write its done-record and return it. Never raises what the work raised.

    Args:
        process: ``group.rank``.
        service: the work ends only by being stopped, so that is a good end.
    """
    try:
        work()
        record = DoneRecord(process=process, status="stopped" if stop.is_set() and not service else "done")
    except Stopped as stopped:
        log.info("%s", stopped)
        record = DoneRecord(process=process, status="done" if service else "stopped")
    except RoleFailed as failed:
        log.error("%s failed: %s", process, failed)
        record = DoneRecord(process=process, status="failed", code=failed.code, error=str(failed))
    except HpcrlError as error:
        log.error("%s failed\n%s", process, traceback.format_exc())
        record = DoneRecord(process=process, status="failed", code=1, error=str(error))
    except Exception as error:  # noqa: BLE001 - the role's outer edge
        log.error("%s failed\n%s", process, traceback.format_exc())
        what = "".join(traceback.format_exception_only(error)).strip()
        record = DoneRecord(process=process, status="failed", code=1, error=what)
    write_done(attempt, record)
    return record
