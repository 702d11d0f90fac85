"""An attempt's life, with a fake of srun in the place of Slurm."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpcrl.launch.layout import Component, Layout
from hpcrl.launch.render import JobFacts
from hpcrl.launch.site import PACKAGED, load_site
from hpcrl.recipe import Limits, Recipe, Schedule
from hpcrl.run.directory import Attempt, RunDirectory
from hpcrl.run.records import DoneRecord, write_done
from hpcrl.run.rendezvous import Rendezvous
from hpcrl.supervise import life as life_module
from hpcrl.supervise.drain import ask_to_drain
from hpcrl.supervise.heard import Heard
from hpcrl.supervise.job import Job
from hpcrl.supervise.life import Life
from hpcrl.tracking.journal import Journal


@dataclass
class Staged:
    """A life whose one step is the fake of srun."""

    attempt: Attempt
    heard: Heard
    life: Life


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], Staged]:
    def make(step_s: float) -> Staged:
        fake_srun = tmp_path / "srun"
        fake_srun.write_text(f"#!/bin/sh\nexec sleep {step_s}\n")
        fake_srun.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
        run = RunDirectory.create(tmp_path / "run", name="t", recipe_json="{}")
        attempt, heard = run.new_attempt(), Heard()
        part = Component(name="all", groups=(), nodes=1, gpus_per_node=0, cpus_per_node=1, memory_gib=1, partition="")
        schedule = Schedule(steps=1, prompts_per_step=1, samples_per_prompt=1)
        life = Life(
            attempt,
            Recipe(name="t", groups={}, streams=(), schedule=schedule, limits=Limits(drain_s=1.0)),
            Layout(components=(part,), no_kill=False, minutes=1),
            load_site(PACKAGED / "local-cluster.toml"),
            JobFacts(run=run.path, run_id=run.run_id, name="t", code=(), python=Path("/")),
            Job("1", 0, ("n1",)),
            {"all": ("n1",)},
            joined={},
            heard=heard,
            journal=Journal(attempt.journal / "supervisor.jsonl"),
            kill_wait=lambda: 5.0,
        )
        return Staged(attempt, heard, life)

    return make


def test_ignitors_that_do_not_end_are_not_waited_for_for_ever(
    stage: Callable[[float], Staged], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(life_module, "LATE_S", 0.5)
    staged = stage(60)
    staged.life.steps.tend(lambda step: None)
    staged.heard.tell("preempted")
    began = time.monotonic()
    try:
        verdict = staged.life.run()
    finally:
        staged.life.steps.end()
    assert 1.4 < time.monotonic() - began < 10
    assert (verdict.what, verdict.reason) == ("again", "preempted")
    assert staged.life.steps.ended()


@pytest.mark.parametrize(("told", "what"), [(True, "again"), (False, "failed")])
def test_all_may_have_ended_of_a_signal_before_an_ignitor_speaks(stage: Callable[[float], Staged], told: bool, what: str):
    staged = stage(0.2)
    Rendezvous(staged.attempt.path / "rendezvous", staged.attempt.run.run_id).publish("slots/0", {})
    write_done(staged.attempt, DoneRecord(process="a.0", status="failed", code=17, error="lost its workers"))
    speaks = threading.Timer(0.8, ask_to_drain, (staged.attempt, "SIGTERM to ignitor.0", 1.0))
    staged.life.steps.tend(lambda step: None)
    if told:
        speaks.start()
    verdict = staged.life.run()
    speaks.cancel()
    assert verdict.what == what, verdict.reason
