"""Runs inside real Slurm jobs, from the batch script to their end."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from hpcrl.launch.layout import Component, Layout
from hpcrl.run.atomic import write_json
from hpcrl.run.directory import RunDirectory
from hpcrl.run.records import DoneRecords

pytestmark = pytest.mark.slow


def component(name: str, *groups: str, nodes: int = 1, gpus: int = 0, spares: int = 0) -> Component:
    return Component(
        name=name,
        groups=groups,
        nodes=nodes,
        gpus_per_node=gpus,
        cpus_per_node=8,
        memory_gib=4,
        partition="main",
        spares=spares,
    )


def layout(*components: Component) -> Layout:
    return Layout(components=components, no_kill=any(item.spares for item in components), minutes=10)


TOY = ("source", "doubler", "sink", "idler")
ONE_NODE = layout(component("all", *TOY))


def test_a_heterogeneous_job_on_four_nodes_learns_and_ends_by_itself(runs: Any):
    parts = (
        component("hub", "rollout", "reward"),
        component("inference", "inference"),
        component("trainer", "trainer", nodes=2),
    )
    run = runs.submit("tiny", layout(*parts), "ranks=2", "steps=3")
    run.wait("COMPLETED", "FAILED")
    assert [step["version"] for step in run.records("step")] == [1, 2, 3], run.log
    job = json.loads((run.path / "attempt_1" / "slurm.json").read_text())
    assert (job["id"], job["restarts"]) == (run.job, 0)
    assert {name: len(nodes) for name, nodes in job["nodes"].items()} == {"hub": 1, "inference": 1, "trainer": 2}
    plan = json.loads((run.path / "attempt_1" / "plan.json").read_text())
    assert len({node["name"] for node in plan["allocation"]["nodes"]}) == 4
    assert {p["node"] for p in plan["processes"] if p["group"] == "trainer"} == set(job["nodes"]["trainer"])
    assert run.verdicts() == ["done"]
    assert {record.status for record in DoneRecords(run.run.latest()).read().values()} == {"done"}
    assert (run.path / "report.html").exists()
    assert "the work is done" in run.log
    run.nothing_is_left()


def test_a_cancelled_run_leaves_nothing_and_another_on_its_nodes_is_untouched(runs: Any):
    shared = layout(component("all", *TOY, gpus=1))
    goes = runs.submit("toy", shared, "gpus=1", "doublers=1", "forever=true")
    goes.wait_for_line('"put"', 1, "source.0")
    stays = runs.submit("toy", shared, "gpus=1", "doublers=1", "count=300")
    stays.wait_for_line('"put"', 1, "source.0")
    nodes = [json.loads((run.path / "attempt_1" / "slurm.json").read_text())["nodes"] for run in (goes, stays)]
    assert nodes[0] == nodes[1], "both runs are on the same node"
    gpus = [
        [p["gpus"] for p in json.loads((run.path / "attempt_1" / "plan.json").read_text())["processes"] if p["gpus"]]
        for run in (goes, stays)
    ]
    assert gpus == [[[0]], [[1]]]
    assert goes.shared_memory()
    assert stays.shared_memory()
    runs.cluster.run("scancel", goes.job)
    goes.wait("CANCELLED", seconds=30)
    goes.nothing_is_left()
    assert len(goes.run.attempts()) == 1
    stays.wait("COMPLETED", "FAILED")
    assert stays.verdicts() == ["done"], stays.log
    assert json.loads((stays.path / "seen.json").read_text()) == list(range(300))
    stays.nothing_is_left()


def test_a_role_that_fails_ends_the_job_with_its_code_and_words(runs: Any):
    run = runs.submit("toy", ONE_NODE, "fail_at=20", "forever=true")
    run.wait("FAILED", "COMPLETED")
    assert "ExitCode=17:0" in runs.cluster.run("scontrol", "show", "job", run.job)
    assert "number 20 is not to be doubled" in run.log
    assert run.verdicts() == ["failed"]
    run.nothing_is_left()


def test_a_run_that_saved_nothing_three_times_in_a_row_stops(runs: Any):
    def three_attempts(run: RunDirectory) -> None:
        for _ in range(3):
            write_json(run.new_attempt().path / "began.json", {"step": 0, "job": "1"})

    began = time.monotonic()
    run = runs.submit("toy", ONE_NODE, before=three_attempts)
    run.wait("FAILED", "COMPLETED", seconds=20)
    assert time.monotonic() - began < 20
    assert "ExitCode=75:0" in runs.cluster.run("scontrol", "show", "job", run.job)
    assert "saved nothing beyond step 0" in run.log
    assert len(run.run.attempts()) == 3
