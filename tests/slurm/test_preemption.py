"""Runs that are interrupted in every way that Slurm knows, and go on."""

from __future__ import annotations

import json
import sqlite3
import time
from typing import Any

import pytest

from hpcrl.launch.jobs import recorded_jobs
from hpcrl.launch.layout import Component, Layout

pytestmark = pytest.mark.slow

STEPS = 80


def component(name: str, *groups: str, nodes: int = 1, spares: int = 0, partition: str = "main") -> Component:
    return Component(
        name=name,
        groups=groups,
        nodes=nodes,
        gpus_per_node=0,
        cpus_per_node=8,
        memory_gib=4,
        partition=partition,
        spares=spares,
    )


TOY = ("source", "doubler", "sink", "idler")


def test_preempted_requeued_and_without_a_controller_for_a_while(runs: Any):
    """Interrupted in a step, then at its start; the controller crashes and comes back in the third life."""
    groups = ("rollout", "reward", "inference", "trainer")
    parts = Layout(components=(component("all", *groups, partition="low"),), no_kill=False, minutes=15)
    run = runs.submit("tiny", parts, f"steps={STEPS}")
    run.wait_for_line('"step":3,"version":3', 1, "trainer.0")
    high = runs.cluster.run(
        "sbatch", "--parsable", "--partition=high", "--nodes=6", "--exclusive", "--output=/dev/null", "--wrap=true"
    ).strip()
    runs.cluster.wait_job(high, {"COMPLETED"}, seconds=60)
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

    assert run.verdicts()[0] == "requeue", run.log
    assert run.verdicts()[-1] == "done", run.log
    assert len(run.run.attempts()) == 3
    assert [step["step"] for step in run.records("step")] == list(range(1, STEPS + 1)), "no step twice, none left out"
    assert [step["version"] for step in run.records("step")] == list(range(1, STEPS + 1))
    newest = max(run.path.glob("state/step-*/record.json"))
    assert json.loads(newest.read_text())["caller"] == {"step": STEPS, "prompts": 4 * STEPS, "beyond": []}
    assert json.loads((run.path / "attempt_3" / "slurm.json").read_text())["restarts"] == 2
    with sqlite3.connect(run.path / "mlflow.db") as database:
        assert database.execute("select status from runs").fetchall() == [("FINISHED",)]
        (steps,) = database.execute("select count(distinct step) from metrics where key like '%reward'").fetchone()
    assert steps == STEPS
    run.nothing_is_left()


def test_at_its_time_limit_a_job_that_may_not_be_requeued_leaves_a_successor(runs: Any):
    parts = Layout(components=(component("all", *TOY),), no_kill=False, minutes=1)
    run = runs.submit("toy", parts, "forever=true", requeue=False)
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
