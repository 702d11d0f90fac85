"""How a job gets back into the queue where Slurm says no."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from hpcrl.launch.slurm import Slurm, SlurmRefused
from hpcrl.supervise import requeue
from hpcrl.supervise.job import JobState
from hpcrl.supervise.requeue import back_into_queue

RUNS = JobState("RUNNING", "None", 1000.0, True, "n1")
QUEUED = JobState("PENDING", "BeginTime", None, False, "n1")
REQUEUED = JobState("COMPLETING", "None", None, False, "n1", restarts=1)


@dataclass
class FakeJob:
    """Is in one state after the other, and then stays in the last."""

    states: list[JobState | None]
    id: str = "7"
    restarts: int = 0
    looks: int = field(default=0)

    def look(self) -> JobState | None:
        self.looks += 1
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]


@pytest.fixture(autouse=True)
def refusing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Slurm, job: int) -> None:
        raise SlurmRefused("scontrol", f"Job is pending execution for job {job}")

    monkeypatch.setattr(Slurm, "requeue", refuse)
    monkeypatch.setattr(requeue, "ASK_AGAIN_S", 0.0)


@pytest.mark.parametrize("then", [QUEUED, REQUEUED])
def test_a_job_that_slurm_has_queued_meanwhile_needs_no_other(then: JobState):
    asked: list[Any] = []
    job: Any = FakeJob([RUNS, then])
    assert back_into_queue(job, lambda: False, lambda: asked.append(1) or 8) == "leave"
    assert not asked


def test_one_that_may_not_be_queued_again_has_a_successor():
    asked: list[Any] = []
    job: Any = FakeJob([RUNS])
    assert back_into_queue(job, lambda: False, lambda: asked.append(1) or 8) == "successor"
    assert asked == [1]


def test_where_slurm_is_silent_after_its_no_it_is_asked_again():
    job: Any = FakeJob([RUNS, None, None, QUEUED])
    assert back_into_queue(job, lambda: False, lambda: 8) == "leave"
    assert job.looks == 4


def test_a_run_that_is_cancelled_meanwhile_is_not_queued():
    answers = iter([False, True])
    job: Any = FakeJob([RUNS])
    assert back_into_queue(job, lambda: next(answers), lambda: 8) == "cancelled"
