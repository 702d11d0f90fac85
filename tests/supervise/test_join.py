from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from hpcrl.launch.joined import expect_joined, is_dismissed
from hpcrl.run.atomic import write_json
from hpcrl.run.directory import RunDirectory
from hpcrl.run.rendezvous import Rendezvous
from hpcrl.supervise.job import JobState
from hpcrl.supervise.join import Ready, answer, answers, call_of, make_call, take, taken
from hpcrl.supervise.joined import JoinWatch
from hpcrl.supervise.verdict import after_drain, keeps_job


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    made = RunDirectory.create(tmp_path / "run", name="x", recipe_json="{}")
    (made.path / "slurm").mkdir()
    return made


def ready(call: str, job: str = "13", restarts: int = 0) -> Ready:
    return Ready(call, job, restarts, ("n3", "n4"))


def test_only_who_answers_this_call_is_there(run: RunDirectory):
    assert call_of(run) is None
    first = make_call(run, "12")
    assert call_of(run) == first
    answer(run, "inference", ready(first.id))
    assert answers(run, first, ["inference", "judge"]) == {"inference": ready(first.id)}
    second = make_call(run, "12")
    assert call_of(run) == second != first
    assert answers(run, second, ["inference"]) == {}, "an answer to an earlier call may be of a job that is gone"
    answer(run, "inference", ready(second.id, restarts=1))
    assert answers(run, second, ["inference"])["inference"].restarts == 1


def test_an_attempt_takes_one_life_of_a_job(run: RunDirectory):
    attempt = run.new_attempt()
    assert taken(attempt) == {}
    take(attempt, {"inference": ready("c")})
    held = taken(attempt)["inference"]
    assert held.nodes == ("n3", "n4")
    assert held.is_life("13", 0)
    assert not held.is_life("13", 1)
    assert not held.is_life("14", 0)


def test_a_run_that_is_expected_again_dismisses_nobody(run: RunDirectory):
    write_json(run.path / "slurm" / "over", {})
    assert is_dismissed(run)
    expect_joined(run)
    expect_joined(run)
    assert not is_dismissed(run)


def test_a_component_that_does_not_come_is_late_and_one_that_came_is_not(run: RunDirectory):
    attempt = run.new_attempt()
    joined = {"inference": ready("c"), "judge": ready("c", "14")}
    watch = JoinWatch(attempt, joined, {"inference": range(2, 4), "judge": range(4, 5)}, start_s=0)
    Rendezvous(attempt.path / "rendezvous", run.run_id).publish("slots/3", {})
    assert [(item.component, item.reason) for item in watch.lost(ask=False)] == [
        ("judge", "component judge did not join within 0 s")
    ]
    patient = JoinWatch(attempt, joined, {"judge": range(4, 5)}, start_s=100)
    assert patient.lost(ask=False) == []


def test_a_job_that_was_put_back_into_the_queue_says_so_while_it_still_ends():
    # As Slurm shows it: the end is that of its next life.
    ending = JobState("COMPLETING", "None", 2000.0, False, "n1", restarts=1)
    assert after_drain(ending, cancelled=False, restarts=0) == "leave"
    assert after_drain(ending, cancelled=False, restarts=1) == "cancelled"


def test_which_job_can_go_on_with_another_attempt():
    runs = JobState("RUNNING", "None", 1000.0, False, "n1")
    assert keeps_job(runs, 60, now=900)
    assert not keeps_job(runs, 60, now=950)
    assert keeps_job(dataclasses.replace(runs, end=None), 60, now=950)
    assert keeps_job(None, 60, now=0)
    assert not keeps_job(dataclasses.replace(runs, preempted=True), 60, now=0)
    assert not keeps_job(dataclasses.replace(runs, state="COMPLETING"), 60, now=0)
