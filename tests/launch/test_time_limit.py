from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcrl.checkpoint.cursor import Cursor
from hpcrl.checkpoint.state.manifest import Manifest, write_manifest
from hpcrl.launch.layout import Component, Layout
from hpcrl.launch.pace import Pace
from hpcrl.launch.render import JobFacts
from hpcrl.launch.time_limit import TimeLimit, of_run
from hpcrl.run.directory import RunDirectory
from hpcrl.tracking.journal import Journal

PACE = Pace(run="before", steps=40, step_s=30.0, start_s=120.0)


def limit(minutes: int, steps: int = 100, pace: Pace | None = PACE, signal_s: int = 90) -> TimeLimit:
    return TimeLimit(minutes=minutes, signal_s=signal_s, steps=steps, pace=pace)


def test_without_a_pace_only_the_save_has_to_fit():
    assert limit(2, pace=None).problems == []
    assert limit(2, pace=None).estimate == ""
    (problem,) = limit(1, pace=None).problems
    assert problem.startswith("a time limit of 1 minutes leaves no time to work: saving may take 90 s of it")


@pytest.mark.parametrize(("minutes", "refused"), [(3, True), (4, False)])
def test_start_step_and_save_have_to_fit(minutes: int, refused: bool):
    # 120 + 30 + 90 s are 4 minutes.
    assert bool(limit(minutes).problems) == refused
    if refused:
        (problem,) = limit(minutes).problems
        assert "run before took 2 min to start and 30 s a step (median of 40), and 90 s are kept for the save" in problem
        assert problem.endswith("ask for more --time, at least 4 minutes")
        assert limit(minutes).estimate == ""


def test_a_save_longer_than_what_is_kept_for_it_has_to_fit_too():
    slow = Pace(run="before", steps=1, step_s=30.0, start_s=120.0, save_s=200.0)
    assert limit(5, pace=slow).problems != []
    assert limit(6, pace=slow).problems == []


def test_how_many_jobs_a_run_takes():
    source = " (median of 30 s a step, 40 steps of run before)"
    # 10 minutes less 90 s and 120 s are 13 steps.
    assert limit(10, steps=13).estimate == "13 steps fit into the time limit: about 8 min" + source
    assert limit(10, steps=14).estimate == "about 13 steps fit into 10 minutes, so 14 take 1 requeue" + source
    assert limit(10, steps=26).estimate == "about 13 steps fit into 10 minutes, so 26 take 1 requeue" + source
    assert limit(10, steps=27).estimate == "about 13 steps fit into 10 minutes, so 27 take 2 requeues" + source
    assert limit(4, steps=2).estimate == "about 1 step fit into 4 minutes, so 2 take 1 requeue" + source


def test_nothing_is_said_when_nothing_is_left():
    assert (limit(3, steps=0).problems, limit(10, steps=0).estimate) == ([], "")


def submitted(folder: Path, *, minutes: int, steps: int) -> RunDirectory:
    recipe = {"name": "r", "schedule": {"steps": steps}, "groups": {"rollout": {}, "trainer": {}}}
    run = RunDirectory.create(folder / "mine", name="r", recipe_json=json.dumps(recipe))
    component = Component(
        name="all", groups=("trainer",), nodes=1, gpus_per_node=0, cpus_per_node=1, memory_gib=0, partition="main"
    )
    (run.path / "layout.json").write_text(Layout(components=(component,), no_kill=False, minutes=minutes).to_json())
    facts = JobFacts(run=run.path, run_id=run.run_id, name="r", code=(run.path / "code",), python=Path("/usr"), signal_s=60)
    (run.path / "job.json").write_text(facts.to_json())
    return run


def test_a_run_that_is_resumed_is_judged_by_itself(tmp_path: Path):
    run = submitted(tmp_path, minutes=5, steps=20)
    first = of_run(run)
    assert first is not None
    assert (first.problems, first.estimate) == ([], "")
    attempt = run.new_attempt()
    journal = Journal(attempt.journal / "trainer.0.jsonl")
    for step in (1, 2, 3):
        journal.write("step", step=step, step_s=100.0 * step)
    saved = Manifest(run_id=run.run_id, attempt=1, step=3, number=1, cursor=Cursor(step=3, prompts=6).to_record())
    (run.state / str(saved.name)).mkdir(parents=True)
    write_manifest(run.state, saved)
    later = of_run(run)
    assert later is not None
    assert later.steps == 17
    assert later.estimate.startswith("about 1 step fit into 5 minutes, so 17 take 16 requeues (median of 3 min a step")
    for step in (4, 5):
        journal.write("step", step=step, step_s=400.0)
    slower = of_run(run)
    assert slower is not None
    (problem,) = slower.problems
    assert "does not hold one step" in problem
    assert "ask for more --time, at least 6 minutes" in problem


def test_a_run_whose_records_are_no_use_is_not_judged(tmp_path: Path):
    assert of_run(RunDirectory.create(tmp_path / "local", name="l", recipe_json="{}")) is None
