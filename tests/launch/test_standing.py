from __future__ import annotations

import pytest

from hpcrl.launch.reasons import WAITS, is_held, why_it_waits, why_refused
from hpcrl.launch.slurm_text import Job
from hpcrl.launch.standing import joined_in_words, standing


def job(state: str, reason: str = "", **facts) -> Job:
    return Job(id=7, state=state, reason=reason, **facts)


@pytest.mark.parametrize("records", [None, "running", "finished", "failed", "stopped"])
def test_a_silent_slurm_makes_no_run_fail_and_none_end(records):
    found = standing(records, on_cluster=True, silent="`squeue` did not answer")
    assert found.word == (records or "submitted")
    assert found.is_over is (records in ("finished", "failed"))


@pytest.mark.parametrize(
    ("records", "slurm", "cancelled", "word", "is_over"),
    [
        (None, job("PENDING", "Priority"), False, "waiting", False),
        (None, job("PENDING", "JobHeldUser"), False, "held", False),
        ("stopped", job("PENDING", "BeginTime"), False, "waiting", False),
        (None, job("RUNNING"), False, "starting", False),
        ("running", job("RUNNING"), False, "running", False),
        ("running", job("RUNNING"), True, "ending", False),
        ("failed", job("RUNNING"), False, "failed", False),
        ("running", job("COMPLETING"), False, "ending", False),
        ("running", job("SUSPENDED"), False, "suspended", False),
        ("finished", job("RUNNING"), False, "finished", False),
        ("finished", job("COMPLETED"), False, "finished", True),
        ("stopped", job("COMPLETED"), False, "stopped", True),
        ("stopped", job("COMPLETED"), True, "cancelled", True),
        ("running", job("TIMEOUT"), False, "timed out", True),
        ("running", job("NODE_FAIL"), False, "failed", True),
        ("running", job("COMPLETED"), False, "failed", True),
        (None, job("FAILED", exit_code="1:0"), False, "failed", True),
        (None, job("CANCELLED"), False, "cancelled", True),
        ("failed", None, False, "failed", True),
        ("running", None, False, "lost", True),
        ("running", None, True, "cancelled", True),
        (None, None, False, "not queued", True),
    ],
)
def test_records_and_slurm_together(records, slurm, cancelled, word, is_over):
    found = standing(records, job=slurm, on_cluster=True, cancelled=cancelled)
    assert (found.word, found.is_over) == (word, is_over)


@pytest.mark.parametrize("records", [None, "running", "finished", "failed", "stopped"])
def test_a_run_on_one_machine_goes_by_its_records_alone(records):
    assert standing(records).word == (records or "not started")


def test_why_it_waits_is_said_in_words():
    assert standing(None, job=job("PENDING", "Resources", start="2026-11-30T05:00:00"), on_cluster=True).why == (
        f"{WAITS['Resources']}; expected to start at 2026-11-30T05:00:00"
    )
    assert "scontrol release 7" in standing(None, job=job("PENDING", "JobHeldUser"), on_cluster=True).why
    assert why_it_waits("ReqNodeNotAvail, UnavailableNodes:n1") == f"{WAITS['ReqNodeNotAvail']} (UnavailableNodes:n1)"
    assert why_it_waits("QOSMaxGRESPerUser").startswith("a limit of its QOS is reached (QOSMaxGRESPerUser)")
    assert why_it_waits("AssocGrpGRES").startswith("a limit of its account")
    assert why_it_waits("SomethingNew") == "Slurm says SomethingNew"
    assert why_it_waits("") == WAITS["None"]
    assert is_held("JobHeldAdmin")
    assert not is_held("Priority")


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("Invalid account or account/partition combination specified", "correct `account` in the site profile"),
        ("Invalid qos specification", "correct `qos`"),
        ("Requested node configuration is not available", "sinfo --Node --long"),
        ("something else", "Slurm refuses the job: something else"),
    ],
)
def test_a_refusal_says_what_to_do(said: str, hint: str):
    text = why_refused(said)
    assert said in text
    assert hint in text


def test_a_main_job_that_waits_for_what_joins_it_says_why():
    actors = job("PENDING", "Priority")
    found = standing(None, job=job("RUNNING"), joined={"inference": actors}, on_cluster=True)
    assert found.word == "waiting"
    assert "inference: job 7 waits: jobs of higher priority are ahead of it" in found.why
    assert standing("stopped", job=job("RUNNING"), joined={"inference": actors}, on_cluster=True).word == "waiting"
    assert standing("running", job=job("RUNNING"), joined={"inference": actors}, on_cluster=True).word == "running"
    there = {"inference": job("RUNNING", nodes=("n3",), partitions=("low",))}
    assert standing(None, job=job("RUNNING"), joined=there, on_cluster=True).word == "starting"
    assert joined_in_words("inference", there["inference"]) == "inference: job 7 runs on n3 in partition low"
    assert joined_in_words("inference", job("NODE_FAIL")) == "inference: a node of job 7 failed"
