"""Runs that are interrupted in every way that Slurm knows, and go on."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest

from hpcrl.checkpoint.state.manifest import newest
from hpcrl.launch.jobs import recorded_jobs
from hpcrl.launch.layout import Component, Layout
from hpcrl.supervise.drain import drain_of

pytestmark = pytest.mark.slow

STEPS = 80


def component(name: str, *groups: str, nodes: int = 1, spares: int = 0, partition: str = "main", cpus: int = 8) -> Component:
    return Component(
        name=name,
        groups=groups,
        nodes=nodes,
        gpus_per_node=0,
        cpus_per_node=cpus,
        memory_gib=4,
        partition=partition,
        spares=spares,
    )


TOY = ("source", "doubler", "sink", "idler")
PHASED = ("rollout", "reward", "inference", "trainer", "evaluator")


def preempt(run: Any) -> str:
    """Have Slurm preempt a job in partition ``low``; returns the job that takes its place."""
    nodes = len(run.cluster.spec.node_names)
    options = ("--parsable", "--partition=high", f"--nodes={nodes}", "--exclusive", "--output=/dev/null", "--wrap=true")
    job: str = run.cluster.run("sbatch", *options).strip()
    return job


def test_preempted_requeued_and_without_a_controller_for_a_while(runs: Any):
    """Interrupted in steps and an evaluation, then at its start; the controller crashes and comes back in the third life."""
    parts = Layout(components=(component("all", *PHASED, partition="low"),), no_kill=False, minutes=15)
    run = runs.submit("phased", parts, f"steps={STEPS}", "evaluator_stays=evaluation")
    run.wait_for_line('"name":"evaluation"', 1, "evaluator.0")
    run.wait_for_line('"step":3,"version":3', 1, "trainer.0")
    runs.cluster.wait_job(preempt(run), {"COMPLETED"}, seconds=60)
    saved = [step["step"] for step in run.records("step", 1)]
    assert saved == list(range(1, len(saved) + 1))
    assert 3 <= len(saved) < STEPS

    run.wait_for("the second attempt's plan", lambda: (run.path / "attempt_2" / "plan.json").exists())
    assert json.loads((run.path / "attempt_2" / "began.json").read_text())["step"] == len(saved), run.log
    runs.cluster.run("scontrol", "requeue", run.job)

    run.wait_for_line('"kind":"step"', 3, "trainer.0")
    runs.cluster.kill_controller()
    crashed = time.time()
    run.wait_for("steps without a controller", lambda: run.records("step", 3)[-1]["t"] > crashed)
    runs.cluster.start_controller()
    run.wait("COMPLETED", "FAILED")

    run.went_on()
    assert len(run.run.attempts()) == 3
    run.trained_exactly(STEPS)
    assert json.loads((run.path / "attempt_3" / "slurm.json").read_text())["restarts"] == 2
    run.nothing_is_left()


def test_preempted_in_its_first_moment_a_job_is_not_lost(runs: Any):
    """Nobody listens yet when Slurm's signal comes."""
    parts = Layout(components=(component("all", *TOY, partition="low"),), no_kill=False, minutes=10)
    run = runs.submit("toy", parts)
    run.wait("RUNNING")
    preempt(run)
    run.wait("COMPLETED", "FAILED")
    run.went_on()
    state = runs.cluster.run("scontrol", "show", "job", run.job)
    assert "Restarts=1" in state
    assert json.loads((run.path / "seen.json").read_text()) == list(range(40))
    run.nothing_is_left()


def test_preempted_as_slurm_does_by_default_the_steps_alone_hear_of_it(plain_runs: Any):
    """They are in steps, and one of them in a compile, in which it hears nothing."""
    parts = Layout(components=(component("all", *PHASED, partition="low"),), no_kill=False, minutes=15)
    run = plain_runs.submit("phased", parts, "steps=40", "evaluator_stays=compile")
    run.wait_for_line('"step":3,"version":3', 1, "trainer.0")
    preempt(run)
    run.wait("COMPLETED", "FAILED", "PREEMPTED", "CANCELLED")
    run.went_on()
    assert len(run.run.attempts()) == 2
    reason = drain_of(run.run.attempts()[0]).reason
    assert "SIGTERM to ignitor.0" in reason or "was stopped from outside" in reason, "a role may end before an ignitor speaks"
    run.trained_exactly(40)
    run.nothing_is_left()


def test_at_its_time_limit_a_run_goes_on_in_the_same_job_or_in_a_successor(runs: Any):
    """One that may be requeued and one that may not, side by side."""
    all_toy = Layout(components=(component("all", *TOY),), no_kill=False, minutes=1)
    all_phased = Layout(components=(component("all", *PHASED),), no_kill=False, minutes=2)
    run = runs.submit("toy", all_toy, "forever=true", requeue=False)
    requeued = runs.submit("phased", all_phased, "steps=30", "trainer_stays=checkpoint")
    # With a limit of one minute, Slurm's warning comes with the start.
    run.wait("COMPLETED", "FAILED", "TIMEOUT")
    first, second = recorded_jobs(run.run)
    assert (first.why, second.why) == ("submit", "successor")
    assert run.verdicts() == ["successor"], run.log
    assert "COMPLETED" in runs.cluster.run("scontrol", "show", "job", run.job)
    assert f"job {second.job} goes on with the run" in run.log
    run.wait_for("the successor's attempt", lambda: (run.path / "attempt_2" / "began.json").exists(), 60)
    assert json.loads((run.path / "attempt_2" / "began.json").read_text())["job"] == str(second.job)
    (run.path / "cancelled").touch()
    runs.cluster.run("scancel", str(second.job))
    run.nothing_is_left()
    assert len(recorded_jobs(run.run)) == 2

    requeued.wait("COMPLETED", "FAILED", "TIMEOUT")
    requeued.went_on()
    assert drain_of(requeued.run.attempts()[0]).reason == "SIGUSR1 to the job"
    assert json.loads((requeued.path / "attempt_2" / "began.json").read_text())["step"] == 10
    requeued.trained_exactly(30)
    requeued.nothing_is_left()


def test_a_node_that_goes_down_without_a_spare_sends_the_job_back_into_the_queue(runs: Any):
    """A single job that loses its only node, and a heterogeneous one that loses its trainer's; Slurm requeues both itself."""
    # Each has its node to itself: with one's node, another's part would go too.
    most = runs.cluster.spec.cpus
    alone = Layout(components=(component("all", *PHASED, cpus=most),), no_kill=False, minutes=15)
    parts = {"hub": ("rollout", "reward", "evaluator"), "inference": ("inference",), "trainer": ("trainer",)}
    het = Layout(components=tuple(component(name, *on, cpus=most) for name, on in parts.items()), no_kill=False, minutes=15)
    # In a step after the one that is saved: each is there when its node goes, however long that takes.
    sets = ("steps=40", "trainer_stays=train@15")
    both = {name: runs.submit("phased", layout, *sets) for name, layout in (("all", alone), ("trainer", het))}
    lost: set[int] = set()
    try:
        for name, run in both.items():
            run.wait_for("the save of step 10", lambda run=run: newest(run.path / "state"))
            node = json.loads((run.path / "attempt_1" / "slurm.json").read_text())["nodes"][name][0]
            lost.add(int(node.removeprefix("n")))
            runs.cluster.node_down(int(node.removeprefix("n")))
        for run in both.values():
            run.wait_for_line('"kind":"step"', 2, "trainer.0")
            assert not [p for p in run.processes() if re.search(r'"attempt": 1\b', " ".join(p.cmdline()))], (
                "of the dead attempt"
            )
            nodes = json.loads((run.path / "attempt_2" / "slurm.json").read_text())["nodes"]
            assert not lost & {int(node.removeprefix("n")) for names in nodes.values() for node in names}
    finally:
        for number in lost:
            runs.cluster.node_up(number)
    for run in both.values():
        run.wait("COMPLETED", "FAILED")
        run.went_on()
        began = json.loads((run.path / "attempt_2" / "began.json").read_text())["step"]
        assert began >= 10
        assert run.records("step", 2)[0]["step"] == began + 1
        run.trained_exactly(40, undone=True)
        run.nothing_is_left()


def test_a_node_that_goes_down_is_replaced_by_a_spare_in_the_same_job(runs: Any):
    parts = Layout(components=(component("all", *TOY, nodes=3, spares=1),), no_kill=True, minutes=10)
    run = runs.submit("toy", parts, "forever=true", "doublers=9")
    run.wait_for_line('"put"', 1, "source.0")
    before = json.loads((run.path / "attempt_1" / "slurm.json").read_text())["nodes"]["all"]
    plan = json.loads((run.path / "attempt_1" / "plan.json").read_text())
    lost = int(before[1].removeprefix("n"))
    assert {p["node"] for p in plan["processes"]} == set(before[:2]), "the spare is idle"
    runs.cluster.node_down(lost)
    try:
        run.wait_for_line('"put"', 2, "source.0")
    finally:
        runs.cluster.node_up(lost)
    assert run.verdicts() == ["relaunch"], run.log
    after = json.loads((run.path / "attempt_2" / "plan.json").read_text())
    assert {p["node"] for p in after["processes"]} == {before[0], before[2]}
    assert json.loads((run.path / "attempt_2" / "slurm.json").read_text())["id"] == run.job
    runs.cluster.run("scancel", run.job)
    run.nothing_is_left()
