from __future__ import annotations

import pytest

from hpcrl.run.records import DoneRecord
from hpcrl.supervise.drain import Drain
from hpcrl.supervise.job import JobState, parse_job, parse_kill_wait
from hpcrl.supervise.verdict import after_drain, is_stuck, judge_attempt, seconds_left

DRAIN = Drain(reason="SIGUSR1 to the job", seconds=30.0, t=100.0)
WORKERS = ("a.0", "b.0")


def record(process: str, status: str, t: float = 100.0, code: int = 0) -> DoneRecord:
    return DoneRecord(process=process, status=status, code=code, error="why", host="n1", t=t)


def test_work_that_was_done_is_done_even_when_the_end_was_asked_for():
    verdict = judge_attempt([record("a.0", "done"), record("b.0", "done")], WORKERS, DRAIN)
    assert (verdict.what, verdict.code) == ("done", 0)


def test_a_role_that_fails_by_itself_ends_the_run_with_its_code():
    records = [record("a.0", "failed", 50, 17), record("b.0", "failed", 60, 1)]
    verdict = judge_attempt(records, WORKERS, None)
    assert (verdict.what, verdict.code) == ("failed", 17)
    assert "a.0 on n1 failed: why" in verdict.reason


def test_a_process_that_was_killed_leads_to_another_attempt_in_the_same_job():
    killed = DoneRecord(process="a.0", status="failed", code=137, error="why", killed_by="SIGKILL", host="n1", t=100.0)
    verdict = judge_attempt([killed, record("b.0", "stopped")], WORKERS, None)
    assert (verdict.what, verdict.stays, verdict.reason) == ("again", True, "a.0 on n1 was killed by SIGKILL")
    # Its peers see that their connection is gone before the ignitor sees its end.
    assert judge_attempt([killed, record("b.0", "failed", 99.5, 1)], WORKERS, None).what == "again"
    # Who failed long before was not its victim.
    assert judge_attempt([killed, record("b.0", "failed", 90.0, 1)], WORKERS, None).what == "failed"
    assert not judge_attempt([killed], WORKERS, DRAIN).stays, "the drain says where to go on"


@pytest.mark.parametrize("t", [DRAIN.t - 300, DRAIN.t + 300])
def test_a_failure_around_the_signal_is_taken_for_its_effect_whatever_its_clock_says(t: float):
    verdict = judge_attempt([record("a.0", "failed", t, 1), record("b.0", "stopped")], WORKERS, DRAIN)
    assert (verdict.what, verdict.reason) == ("again", DRAIN.reason)


def test_an_end_without_a_word_is_tried_again():
    assert judge_attempt([record("a.0", "done")], WORKERS, None).reason == "steps ended without a word from b.0"
    assert judge_attempt([record("a.0", "stopped")], WORKERS, None).reason == "a.0 was stopped from outside"
    assert judge_attempt([], None, DRAIN).what == "again"
    assert judge_attempt([], None, None).what == "again"


@pytest.mark.parametrize(
    ("began", "committed", "stuck"),
    [
        ([], 0, False),
        ([0, 0], 0, False),
        ([0, 0, 0], 0, True),
        ([0, 0, 0], 1, False),
        ([0, 5, 5, 5], 5, True),
        ([5, 5, 6], 6, False),
        (list(range(20)), 20, False),
        # Twenty preemptions, with progress in every second attempt only.
        ([step for step in range(10) for _ in range(2)], 9, False),
        ([step for step in range(10) for _ in range(2)], 10, False),
    ],
)
def test_three_attempts_in_a_row_that_moved_nothing_are_enough(began: list[int], committed: int, stuck: bool):
    assert is_stuck(began, committed) == stuck


def state(name: str, reason: str = "None", end: float | None = 1000.0, preempted: bool = False) -> JobState:
    return JobState(name, reason, end, preempted, "n1")


@pytest.mark.parametrize(
    ("job", "after"),
    [
        (None, None),
        (state("RUNNING"), "requeue"),
        (state("RUNNING", preempted=True), "requeue"),
        (state("PENDING", "BeginTime", None), "leave"),
        (state("COMPLETING", end=None), "leave"),
        (state("COMPLETING"), "cancelled"),
        (state("COMPLETING", "TimeLimit"), "successor"),
        (state("COMPLETING", preempted=True), "successor"),
        (state("CANCELLED"), "cancelled"),
        (state("TIMEOUT", "TimeLimit"), "successor"),
        (state("PREEMPTED"), "successor"),
        (state("NODE_FAIL"), "successor"),
    ],
)
def test_how_a_job_gets_back_into_the_queue(job: JobState | None, after: str | None):
    assert after_drain(job, cancelled=False) == after
    assert after_drain(job, cancelled=True) == "cancelled"


@pytest.mark.parametrize(
    ("job", "seconds"),
    [
        (None, 120.0),
        (state("RUNNING", end=None), 120.0),
        (state("RUNNING", end=1000.0), 120.0),
        (state("RUNNING", end=560.0), 55.0),
        (state("RUNNING", end=510.0, preempted=True), 38.5),
        (state("COMPLETING", end=None), 28.5),
        (state("RUNNING", end=400.0), 1.0),
    ],
)
def test_a_drain_takes_no_longer_than_slurm_leaves(job: JobState | None, seconds: float):
    assert seconds_left(job, 120.0, kill_wait=30.0, now=500.0) == seconds


def test_what_scontrol_prints_is_read():
    text = (
        "JobId=7 HetJobId=7 JobName=t JobState=RUNNING Reason=None EndTime=2026-01-01T00:00:10 PreemptTime=2026-01-01T00:00:00 "
        "NodeList=n[1-2] BatchHost=n1\nJobId=8 HetJobId=7 JobState=PENDING NodeList=n3\n"
    )
    job = parse_job(text)
    assert job is not None
    assert (job.state, job.preempted, job.nodes) == ("RUNNING", True, "n[1-2]")
    assert job.end is not None
    assert parse_job("JobId=7 JobState=PENDING Reason=Resources EndTime=Unknown PreemptTime=None NodeList=(null)") == JobState(
        "PENDING", "Resources", None, False, "(null)"
    )
    assert parse_job("slurm_load_jobs error: Invalid job id specified") is None
    assert parse_kill_wait("Configuration data\nKillOnBadExit           = 0\nKillWait                = 5 sec\n") == 5.0
    assert parse_kill_wait("") == 30.0
