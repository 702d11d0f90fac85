from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from hpcrl.run.directory import Attempt, RunDirectory
from hpcrl.run.errors import DeadlineExceeded, RoleFailed, Stopped
from hpcrl.run.records import DoneRecords
from hpcrl.run.stop import StopFlag
from hpcrl.supervise.running import run_to_record


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return RunDirectory.create(tmp_path / "run", name="t", recipe_json="{}").new_attempt()


def raising(error: Exception):
    def work() -> NoReturn:
        raise error

    return work


@pytest.mark.parametrize(("service", "status"), [(True, "done"), (False, "stopped")])
@pytest.mark.parametrize("work", [raising(Stopped("asked to")), lambda: None], ids=["raises", "returns"])
def test_being_stopped_is_a_services_good_end(attempt: Attempt, work, service: bool, status: str):
    stop = StopFlag()
    stop.set()
    assert run_to_record(attempt, "a.0", work, stop=stop, service=service).status == status
    assert DoneRecords(attempt).read()["a.0"].status == status


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (RoleFailed("out of luck", code=9), 9, "out of luck"),
        (DeadlineExceeded("waited 3 s for rows"), 1, "waited 3 s for rows"),
        (ZeroDivisionError("by zero"), 1, "ZeroDivisionError: by zero"),
    ],
)
def test_a_failure_is_recorded_and_not_raised(attempt: Attempt, error: Exception, code: int, text: str):
    record = run_to_record(attempt, "a.0", raising(error), stop=StopFlag(), service=False)
    assert (record.status, record.code, record.error) == ("failed", code, text)
